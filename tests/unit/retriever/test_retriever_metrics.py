"""What the retriever tells of searches, encodings and collections."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import numpy as np
import pytest

from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_retriever.domain import CollectionInfo, Draw, Passage, Query, Retrieval
from evenmesh_retriever.metrics import RetrieverMetrics
from evenmesh_retriever.steps import Outcome
from tests.support.in_memory_telemetry import InMemoryTelemetry


def query(draw: Draw | None = None) -> Query:
    """A query to a collection."""
    return Query("a secret", "demo", None, "", 10, 2, draw, with_inclusion=False, stream_id="")


def found() -> Retrieval:
    """What it finds: one passage."""
    return Retrieval(
        passages=[Passage("p1", "", "text")],
        scores=np.array([1.0]),
        rankings=np.array([[0]]),
        log_probabilities=None,
        inclusion=None,
        version="v7",
        retriever="bm25-lucene",
    )


@pytest.mark.parametrize("text", [False, True])
async def test_a_search_is_a_span_with_the_draw_within(text: bool) -> None:
    telemetry = InMemoryTelemetry("retriever", text=text)
    metrics = RetrieverMetrics(telemetry)
    asked = query(Draw(alpha=2.0, num_rankings=3, seed=7))

    async def search() -> Outcome[Retrieval]:
        with metrics.sampling("bm25-lucene", asked):
            return Outcome(found(), 0.25)

    with telemetry.tracer.start_as_current_span("Retrieve"):
        assert (await metrics.searched("bm25-lucene", asked, search)).version == "v7"
    sample, searched, _ = telemetry.spans()
    assert (sample.name, searched.name) == ("sample", "search")
    drawn = {"evenmesh.sampling.alpha": 2.0, "evenmesh.sampling.seed": 7, "evenmesh.sampling.rankings": 3}
    assert dict(sample.attributes or {}) == drawn
    attributes = dict(searched.attributes or {})
    assert attributes.items() >= drawn.items()
    assert attributes["evenmesh.index.version"] == "v7"
    everything = sample.to_json() + searched.to_json()
    assert ("a secret" in everything) is text
    assert ("p1" in everything) is text
    reported = telemetry.metrics()
    (rankings,) = reported["evenmesh.retriever.sampled.rankings"].data.data_points
    assert rankings.value == 3
    (searches,) = reported["evenmesh.retriever.search.duration"].data.data_points
    assert dict(searches.attributes) == {"retriever": "bm25-lucene", "sampled": True}
    assert searches.sum == 0.25  # in its threads, waits between them left out


def test_the_largest_collections_are_reported_by_name_and_all_are_counted() -> None:
    telemetry = InMemoryTelemetry("retriever")
    metrics = RetrieverMetrics(telemetry, series=2)
    now = datetime(2026, 1, 1, tzinfo=UTC)

    def info(name: str, size: int, encoder: str) -> tuple[str, CollectionInfo]:
        return "t", CollectionInfo(name, "v1", size, 10 * size, encoder, now, "", "standard", embedded=0.5)

    metrics.watch(lambda: [info("a", 1, "e"), info("b", 3, ""), info("c", 2, "e")])

    def reported(name: str) -> dict[str, Any]:
        points = telemetry.metrics()[f"evenmesh.retriever.{name}"].data.data_points
        return {str(one.attributes.get("collection", "")): one.value for one in points}

    assert reported("collections") == {"": 3}
    assert reported("collection.passages") == {"b": 3, "c": 2}
    assert reported("collection.embedded") == {"c": 0.5}
    assert reported("collection.updated.timestamp") == {"b": now.timestamp(), "c": now.timestamp()}


def test_a_replica_reports_how_far_it_is_behind() -> None:
    telemetry = InMemoryTelemetry("retriever")

    class Replica:
        age_s = 1.5

        def lags(self) -> list[tuple[tuple[str, str], int]]:
            return [(("t", "a"), 0), (("t", "b"), 3), (("u", "c"), 1)]

    RetrieverMetrics(telemetry, series=2).follow(Replica())

    def reported(name: str) -> dict[str, Any]:
        points = telemetry.metrics()[f"evenmesh.retriever.replica.{name}"].data.data_points
        return {str(one.attributes.get("collection", "")): one.value for one in points}

    assert reported("age") == {"": 1.5}
    assert reported("behind") == {"": 2}
    assert reported("lag") == {"b": 3, "c": 1}


async def test_nothing_runs_where_telemetry_is_off() -> None:
    metrics = RetrieverMetrics(Telemetry.disabled())
    encoder = cast(Any, object())
    assert metrics.encoder(encoder) is encoder
    with metrics.sampling("bm25-lucene", query()):

        async def search() -> Outcome[Retrieval]:
            return Outcome(found(), 0.25)

        assert (await metrics.searched("bm25-lucene", query(), search)).version == "v7"
