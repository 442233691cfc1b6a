"""What the reranker tells of pairs, the model that serves, and feedback."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from evenmesh.wire.errors import FailedPrecondition, MeshError, Unavailable
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_reranker.domain import Agent, Best, Passage, Scores
from evenmesh_reranker.feedback.domain import Outcome, RecordStatus
from evenmesh_reranker.metrics import FeedbackGauges, FeedbackSummary, RerankerMetrics, ServingModel
from tests.support.in_memory_telemetry import InMemoryTelemetry
from tests.support.waiting import until

PASSAGES = [Passage("a", "", "x"), Passage("b", "", "y"), Passage("c", "", "z")]
AGENT = Agent("task", "model")


class Steady:
    """Scores all but the last passage, or fails."""

    def __init__(self, error: MeshError | None = None) -> None:
        self._error = error

    async def score(
        self, query: str, passages: Sequence[Passage], agent: Agent, *, best: Best | None = None
    ) -> Scores:
        if self._error is not None:
            raise self._error
        return Scores((*[0.5] * (len(passages) - 1), math.nan), "v3")


def reported(telemetry: InMemoryTelemetry, name: str) -> dict[tuple[str, ...], float]:
    """Values of a metric by those of its attributes, in the order of their names."""
    found = telemetry.metrics().get(name)
    points = () if found is None else found.data.data_points
    return {tuple(str(v) for _, v in sorted((one.attributes or {}).items())): one.value for one in points}


async def test_pairs_that_were_scored_are_counted_and_reported() -> None:
    telemetry = InMemoryTelemetry("reranker")
    subject = RerankerMetrics(telemetry).reranker("rankrag", Steady())
    with telemetry.tracer.start_as_current_span("Rerank"):
        await subject.score("a secret", PASSAGES, AGENT)
    assert reported(telemetry, "evenmesh.reranker.pairs") == {("rankrag",): 2}
    span = telemetry.spans()[0]
    assert (span.name, dict(span.attributes or {})) == (
        "score",
        {
            "evenmesh.reranker": "rankrag",
            "evenmesh.reranker.pairs": 3,
            "evenmesh.reranker.pairs.unscored": 1,
            "evenmesh.reranker.model.version": "v3",
        },
    )
    assert "secret" not in span.to_json()


async def test_a_failure_has_its_reason() -> None:
    telemetry = InMemoryTelemetry("reranker")
    metrics = RerankerMetrics(telemetry)
    subject = metrics.reranker("cross-encoder", Steady(FailedPrecondition("NOT_CONFIGURED", "no model")))
    with pytest.raises(FailedPrecondition):
        await subject.score("q", PASSAGES, AGENT)
    (point,) = telemetry.metrics()["evenmesh.reranker.duration"].data.data_points
    assert dict(point.attributes) == {"reranker": "cross-encoder", "error.type": "NOT_CONFIGURED"}
    assert reported(telemetry, "evenmesh.reranker.pairs") == {("cross-encoder",): 0}


def test_batches_and_their_queue_are_reported() -> None:
    telemetry = InMemoryTelemetry("reranker")
    metrics = RerankerMetrics(telemetry)
    metrics.watch_queue(lambda: 5)
    metrics.queued([0.5, 1.5])
    with metrics.batch(8):
        pass
    data = {name: one.data.data_points[0] for name, one in telemetry.metrics().items() if "reranker" in name}
    assert data["evenmesh.reranker.queue.depth"].value == 5
    assert (data["evenmesh.reranker.queue.duration"].count, data["evenmesh.reranker.queue.duration"].sum) == (
        2,
        0.5 + 1.5,
    )
    assert (data["evenmesh.reranker.batch.pairs"].sum, data["evenmesh.reranker.batch.duration"].count) == (
        8,
        1,
    )


def test_the_model_that_serves_is_reported_with_its_age() -> None:
    telemetry = InMemoryTelemetry("reranker")
    made, served = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    serving: list[ServingModel | None] = [None]
    RerankerMetrics(telemetry).watch_model(lambda: serving[0])
    assert reported(telemetry, "evenmesh.reranker.model.info") == {}
    serving[0] = ServingModel("v1", made, promoted=False, promoted_at=None)
    assert reported(telemetry, "evenmesh.reranker.model.info") == {("settings", "v1"): 1}
    assert reported(telemetry, "evenmesh.reranker.model.promoted.timestamp") == {}
    serving[0] = ServingModel("v2", made, promoted=True, promoted_at=served)
    assert reported(telemetry, "evenmesh.reranker.model.info") == {("promoted", "v2"): 1}
    assert reported(telemetry, "evenmesh.reranker.model.created.timestamp") == {(): made.timestamp()}
    assert reported(telemetry, "evenmesh.reranker.model.promoted.timestamp") == {(): served.timestamp()}


def test_feedback_is_counted_by_what_became_of_it() -> None:
    telemetry = InMemoryTelemetry("reranker")
    outcomes = [
        Outcome(RecordStatus.STORED),
        Outcome(RecordStatus.STORED),
        Outcome(RecordStatus.DUPLICATE),
        Unavailable("X", "x"),
    ]
    RerankerMetrics(telemetry).recorded(outcomes)
    assert reported(telemetry, "evenmesh.reranker.feedback") == {
        ("stored",): 2,
        ("duplicate",): 1,
        ("refused",): 1,
    }


async def test_feedback_is_looked_at_and_trouble_with_it_ends_nothing() -> None:
    telemetry = InMemoryTelemetry("reranker")
    answers: list[FeedbackSummary | Exception] = [
        Unavailable("STORE_LOCKED", "busy"),
        RuntimeError("unforeseen"),
        FeedbackSummary(0, None),
        FeedbackSummary(7, 2_000_000),
    ]
    done = asyncio.Event()

    async def summary() -> FeedbackSummary:
        answer = answers.pop(0)
        if not answers:
            done.set()
            await asyncio.sleep(0)
        if isinstance(answer, Exception):
            raise answer
        if not answers:
            answers.append(answer)
        return answer

    gauges = FeedbackGauges(telemetry, summary, every_s=0.001)
    gauges.start()
    await done.wait()
    await until(lambda: reported(telemetry, "evenmesh.reranker.feedback.stored") == {(): 7}, 10)
    assert reported(telemetry, "evenmesh.reranker.feedback.newest.timestamp") == {(): 2.0}
    await gauges.close()


async def test_nothing_runs_where_telemetry_is_off() -> None:
    metrics = RerankerMetrics(Telemetry.disabled())
    reranker = Steady()
    assert metrics.reranker("rankrag", reranker) is reranker
    with metrics.batch(3):
        metrics.recorded([])
