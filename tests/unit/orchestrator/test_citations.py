"""Which passages support an answer, and where."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh.common.v1.common_pb2 import Passage
from evenmesh.generator.v1.generator_service_pb2 import Answer, Span
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_orchestrator import servicer
from evenmesh_orchestrator.asks.citations import citations, citations_of, found_citations
from tests.unit.orchestrator.fakes import passage


def _cited(answer: str, text: str) -> str | None:
    """The cited span of one passage as text."""
    found = citations(answer, [passage("p", text)])
    if not found or not found[0].HasField("start"):
        return None
    return text[found[0].start : found[0].end]


@pytest.mark.parametrize(
    ("answer", "text", "span"),
    [
        ("Rhine", "The Rhine flows north.", "Rhine"),
        ("the rhine!", "Longest is the RHINE, by far.", "RHINE"),
        ("Rhine", "Rhineland and Rhines are no match, nor is xRhine.", None),
        ("1,230 km", "It is 1230 km long.", "1230 km"),
        ("1230 km", "It is 1,230  km long.", "1,230  km"),
        ("capital of France", "Paris is the capital of the France of today.", "capital of the France"),
        ("U.S.", "Made in the US.", "US"),
        ("US", "Made in the U.S. today.", "U.S"),
        ("Zürich", "In ZÜRICH it rains.", "ZÜRICH"),
        ("istanbul", "İİ: Istanbul, not Constantinople.", "Istanbul"),
        ("1990", "From 1990–1995 it stood.", "1990"),
        ("C++", "C is not it.", None),
        ("no entry", "There is no entry here.", "no entry"),
        ("ΟΔΟΣ", "İİ: ΟΔΟΣ, a way.", "ΟΔΟΣ"),
        ("5 €", "It costs 15 € or (5  €) here.", "5  €"),
        ("a|b c", "So ab c, ab-c and ab  C.", "ab c"),
    ],
)
def test_spans_are_those_of_the_original_text(answer: str, text: str, span: str | None) -> None:
    assert _cited(answer, text) == span


@pytest.mark.parametrize("answer", ["", "  ", "a", "The", "x", "7", "...", "yes", "No.", "Yes!"])
def test_answers_that_stand_everywhere_cite_nothing(answer: str) -> None:
    assert citations(answer, [passage("p", "Yes, no, a the x 7 ... everything is here.")]) == []


def test_citations_are_in_context_order_with_rank_and_provider() -> None:
    context = [
        passage("one", "Nothing here."),
        passage("two", "The Rhine.", provider="P"),
        passage("three", "Rhine and Rhine."),
    ]
    found = citations("Rhine", context)
    assert [(c.passage_id, c.provider, c.rank, c.start, c.end) for c in found] == [
        ("two", "P", 2, 4, 9),
        ("three", "", 3, 0, 5),
    ]


def test_a_title_alone_is_cited_without_a_span() -> None:
    (found,) = citations("Rhine", [passage("p", "It flows north.", title="The Rhine")])
    assert not found.HasField("start")
    assert not found.HasField("end")


@given(st.text(max_size=60), st.text(max_size=60), st.sampled_from(["Rhine", "two words", "İzmir", "ΟΔΟΣ"]))
def test_an_answer_between_blanks_is_always_found(before: str, after: str, answer: str) -> None:
    text = f"{before} {answer} {after}"
    (found,) = citations(answer, [passage("p", text)])
    assert 0 <= found.start < found.end <= len(text)
    assert citations(answer, [passage("q", text[found.start : found.end])])


@given(st.data())
def test_spans_are_those_of_words_in_order(data: st.DataObject) -> None:
    """Spaces, hyphens that vanish and dashes that part words: the first place where a pattern finds the words."""
    words = st.lists(st.sampled_from(["ab", "abab", "b", "ü", "9"]), min_size=1, max_size=4)
    answer = " ".join(data.draw(words))
    text = "".join(word + data.draw(st.sampled_from([" ", "  ", "-", "–"])) for word in data.draw(words) * 3)
    plain, where = zip(*[(one, place) for place, one in enumerate(text) if one != "-"], strict=True)
    pattern = r"(?<!\w)" + r"\s+".join(answer.split()) + r"(?!\w)"
    expected = re.search(pattern, "".join(plain))
    if len(answer.replace(" ", "")) < 2:
        return
    found = citations(answer, [passage("p", text)])
    spans = [(one.start, one.end) for one in found]
    assert spans == ([(where[expected.start()], where[expected.end() - 1] + 1)] if expected else [])


def test_no_text_becomes_a_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python keeps patterns in a cache of the process, which all tenants share."""
    monkeypatch.delattr(re, "compile")
    assert _cited("Rhine", "The Rhine flows north.") == "Rhine"


def test_an_answer_that_says_where_it_stands_is_cited_there() -> None:
    context = [passage("p", "The Rhine."), passage("q", "Rhine or rhine: the Rhine.", provider="X")]
    answer = Answer(text="Rhine", span=Span(passage=1, start=20, end=25))
    (found,) = citations_of(answer, context)
    assert (found.passage_id, found.provider, found.rank, found.start, found.end) == ("q", "X", 2, 20, 25)
    assert context[1].text[found.start : found.end] == "Rhine"


@pytest.mark.parametrize("span", [None, Span(passage=2, end=1), Span(end=11), Span(start=3, end=3)])
def test_an_answer_without_a_place_of_its_context_is_searched_for(span: Span | None) -> None:
    context = [passage("p", "The Rhine."), passage("q", "A rhine.")]
    answer = Answer(text="Rhine", span=span)
    assert [(one.passage_id, one.start) for one in citations_of(answer, context)] == [("p", 4), ("q", 2)]


async def test_long_passages_are_searched_in_a_thread_one_a_step() -> None:
    pool = TenantPool(1, "citing")
    asked: list[str] = []
    run = pool.run

    async def noted(*given: Any) -> Any:
        asked.append(threading.current_thread().name)
        return await run(*given)

    pool.run = noted  # type: ignore[method-assign]
    short, long = (
        [Passage(id=str(at), text=f"{'x ' * size}Rhine") for at in range(4)] for size in (10, 10_000)
    )
    answer = Answer(text="Rhine")
    assert await found_citations(pool, answer, short) == citations_of(answer, short)
    assert asked == []
    assert await found_citations(pool, answer, long) == citations_of(answer, long)
    assert asked
    pool.close()


async def test_events_of_an_audit_wait_for_who_reads_them() -> None:
    made = 0

    async def events() -> AsyncGenerator[int, None]:
        nonlocal made
        for made in range(1, 1001):
            yield made

    async with aclosing(servicer._ahead(events(), most=8)) as ahead:
        assert await anext(ahead) == 1
        await asyncio.sleep(0.05)
        assert made <= 8 + 3
        assert [one async for one in ahead][-1] == 1000
