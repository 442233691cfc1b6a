"""Answers from web sources, over a search that finds what the test says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from evenmesh.wire.errors import InvalidField, NotFound, Overloaded, Unavailable
from evenmesh_core.plackett_luce import inclusion_probabilities, log_weights
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_retriever.domain import AnyOf, Condition, Draw, Filter, Passage, Query, RetrieverInfo, Scored
from evenmesh_retriever.engine import RetrieverEngine
from evenmesh_retriever.query_admission import QueryAdmission
from evenmesh_retriever.steps import Steps
from evenmesh_retriever.web import WebRetrieval, WebSourceInfo

FOUND = [Passage(name, "", f"text {name}", {"provider": f"{name}.org"}) for name in "dbca"]
QUERY = Query(
    text="q",
    collection="",
    candidates=None,
    retriever="",
    depth=None,
    k=None,
    draw=None,
    with_inclusion=False,
    stream_id="",
)


class Search:
    """Finds the same for every query."""

    def __init__(self, found: list[Passage], error: Exception | None = None) -> None:
        self.found, self.error, self.asked = found, error, list[str]()
        self.info = WebSourceInfo("searx", "A search")

    async def search(self, query: str) -> list[Passage]:
        self.asked.append(query)
        if self.error is not None:
            raise self.error
        return list(self.found)


class ByName:
    """A retriever that likes later names better."""

    info = RetrieverInfo("by-name", "", "test", "", "cpu")

    def work(self, sizes: Sequence[int]) -> int:
        return len(sizes)

    def rank(self, passages: list[Passage], query: str) -> Steps[Scored]:
        yield 0
        n = len(passages)
        return Scored(np.arange(n)[::-1], np.arange(n, 0, -1, dtype=np.float64))


@pytest.fixture
def pool() -> Iterator[ComputePool]:
    pool = ComputePool(1, "test")
    yield pool
    pool.close()


@pytest.fixture
def search() -> Search:
    return Search(FOUND)


@pytest.fixture
def web(search: Search, pool: ComputePool) -> WebRetrieval:
    admission = QueryAdmission(10_000, setting="EVENMESH_X")
    engine = RetrieverEngine(None, {"by-name": ByName()}, "by-name", pool, admission)  # type: ignore[arg-type, dict-item]
    return WebRetrieval({"searx": search}, engine, admission)


async def test_what_is_found_stays_as_it_came(web: WebRetrieval, search: Search) -> None:
    retrieval = await web.retrieve("searx", replace(QUERY, k=3))
    assert [one.id for one in retrieval.passages] == ["d", "b", "c"]
    assert retrieval.scores.tolist() == [1, 1 / 2, 1 / 3]
    assert retrieval.rankings.tolist() == [[0, 1, 2]]
    assert (retrieval.retriever, retrieval.version, search.asked) == ("web", "", ["q"])


async def test_there_may_be_less_than_is_asked_for(web: WebRetrieval) -> None:
    retrieval = await web.retrieve("searx", replace(QUERY, depth=50, k=10))
    assert len(retrieval.passages) == 4
    retrieval = await web.retrieve("searx", replace(QUERY, depth=50, k=10, retriever="by-name"))
    assert len(retrieval.passages) == 4


async def test_depth_bounds_the_pool_before_anything_is_drawn(web: WebRetrieval) -> None:
    draw = Draw(alpha=1.0, num_rankings=20, seed=1)
    retrieval = await web.retrieve("searx", replace(QUERY, depth=2, k=1, draw=draw, with_inclusion=True))
    assert [one.id for one in retrieval.passages] == ["d", "b"]
    assert set(retrieval.rankings.ravel().tolist()) <= {0, 1}
    assert retrieval.inclusion is not None
    exact = inclusion_probabilities(log_weights(np.array([1, 1 / 2]), 1.0), k=1)
    assert retrieval.inclusion.tolist() == pytest.approx(exact.tolist())


async def test_a_retriever_ranks_what_was_found(web: WebRetrieval) -> None:
    retrieval = await web.retrieve("searx", replace(QUERY, retriever="by-name", k=2))
    assert [one.id for one in retrieval.passages] == ["d", "c"]
    assert retrieval.retriever == "by-name"


async def test_what_was_found_is_filtered(web: WebRetrieval) -> None:
    only = Filter((Condition("provider", AnyOf(frozenset({"b.org", "a.org"}))),))
    assert [one.id for one in (await web.retrieve("searx", replace(QUERY, filter=only))).passages] == [
        "b",
        "a",
    ]
    ranked = await web.retrieve("searx", replace(QUERY, filter=only, retriever="by-name"))
    assert [one.id for one in ranked.passages] == ["b", "a"]
    nothing = Filter((Condition("colour", AnyOf(frozenset({"red"}))),))
    for retriever in ("", "by-name"):
        empty = await web.retrieve("searx", replace(QUERY, filter=nothing, retriever=retriever))
        assert (empty.passages, empty.rankings.shape) == ([], (1, 0))


async def test_what_is_refused(web: WebRetrieval, search: Search) -> None:
    with pytest.raises(NotFound, match="there is no web source 'bing'; there are searx") as missing:
        await web.retrieve("bing", QUERY)
    assert missing.value.field == "web"
    with pytest.raises(InvalidField) as caught:
        await web.retrieve("searx", replace(QUERY, depth=2, k=3))
    assert caught.value.field == "k"
    with pytest.raises(NotFound) as unknown:
        await web.retrieve("searx", replace(QUERY, retriever="none"))
    assert unknown.value.field == "retriever"
    search.error = Unavailable("WEB_UNAVAILABLE", "away")
    with pytest.raises(Unavailable):
        await web.retrieve("searx", QUERY)


async def test_searches_count_as_work(search: Search, pool: ComputePool) -> None:
    admission = QueryAdmission(8, setting="EVENMESH_X")
    web = WebRetrieval({"searx": search}, None, admission)  # type: ignore[arg-type]
    with admission.admission.admit(8), pytest.raises(Overloaded):
        await web.retrieve("searx", QUERY)
    assert search.asked == []


async def test_as_many_are_ranked_as_a_query_may_ask_for(search: Search, pool: ComputePool) -> None:
    admission = QueryAdmission(80, setting="EVENMESH_X")  # a query may ask for 4: two words and two passages
    engine = RetrieverEngine(None, {"by-name": ByName()}, "by-name", pool, admission)  # type: ignore[arg-type, dict-item]
    web = WebRetrieval({"searx": search}, engine, admission)
    found = await web.retrieve("searx", replace(QUERY, retriever="by-name"))
    assert [one.id for one in found.passages] == ["d", "b"]


def test_sources_by_name(search: Search) -> None:
    web = WebRetrieval({"z": search, "a": Search([])}, None, QueryAdmission(8, setting="EVENMESH_X"))  # type: ignore[arg-type]
    assert web.list() == [WebSourceInfo("searx", "A search")] * 2
