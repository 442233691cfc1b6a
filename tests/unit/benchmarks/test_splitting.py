"""The comparison of splittings: what counts as answered, and what windows are."""

from __future__ import annotations

import pytest

from benchmarks import splitting
from evenmesh_documents import Block, Document, Kind, Splitting


def page(address: str, *paragraphs: str) -> Document:
    return Document(address, tuple(Block(Kind.PARAGRAPH, one) for one in paragraphs), title="Care")


def test_windows_have_every_word_once_and_in_order() -> None:
    one = page("a", "one two three", "four five")
    found = list(splitting.windows(one, 2))
    assert [piece.text for piece in found] == ["one two", "three four", "five"]
    assert {(piece.page, piece.title) for piece in found} == {("a", "Care")}


def test_our_passages_are_those_of_the_splitter() -> None:
    (one,) = splitting.passages(page("a", "Oil the chain.", "Wipe it."), Splitting())
    assert one == splitting.Piece("a", "Care", "Oil the chain.\n\nWipe it.")


@pytest.mark.parametrize(
    ("answer", "gold", "recall"),
    [
        ("every 200 km", "a", 1.0),
        ("every 200 km", "b", 0.0),
        ("chain Brakes", "a", 0.0),
        ("every  200\nkm", "a", 1.0),
    ],
)
def test_an_answer_counts_whole_and_on_its_page_alone(answer: str, gold: str, recall: float) -> None:
    pytest.importorskip("evenmesh_models")
    pages = [page("a", "Oil the chain every 200\nkm."), page("b", "Brakes wear.")]
    turn = {
        "conversation_id": "c",
        "history": [{"text": "hello"}, {"text": "How often to oil a chain?"}],
        "answers": [answer],
        "gold_passage_ids": [gold],
    }
    measured = splitting.measure(pages, [turn], history=False)
    assert [one.recall.tolist() for one in measured] == [[recall]] * len(measured)
    assert measured[0].passages == 2


def test_conversations_are_averaged_and_compared_with_the_windows() -> None:
    import numpy as np

    rows = [
        splitting.Row("windows", 2, 100.0, np.array([0.0, 0.5, 1.0, 0.0])),
        splitting.Row("ours", 3, 90.0, np.array([0.5, 1.0, 1.0, 0.5])),
    ]
    _, _, first, second = splitting.table(rows).splitlines()
    assert first.startswith("| windows | 2 | 100 | 37.5 (")
    assert second.startswith("| ours | 3 | 90 | 75.0 (")
    assert "| +37.5 (" in second
