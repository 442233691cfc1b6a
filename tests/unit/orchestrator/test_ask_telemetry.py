"""What is recorded of asks: metrics, spans, and the trace that goes along with an observation."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace

from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import MeshError, Unavailable
from evenmesh_kit.telemetry.recorder import extract_context
from evenmesh_kit.telemetry.spans import Spans
from evenmesh_orchestrator import tracing
from evenmesh_orchestrator.domain import Ask
from evenmesh_orchestrator.metrics import AskMetrics, RecordedOutbox, RecordedPipeline, observed_at_s
from tests.support.in_memory_telemetry import InMemoryTelemetry
from tests.unit.orchestrator.fakes import Mesh, ask, audit, ensemble, passage


def recorded(mesh: Mesh, telemetry: InMemoryTelemetry) -> RecordedPipeline:
    """The pipeline of a mesh, recorded."""
    return RecordedPipeline(
        AskMetrics(telemetry),
        Spans(telemetry),
        retriever=mesh.retriever,
        reranker=mesh.reranker,
        generator=mesh.generator,
        observer=mesh.observer,
        config=mesh.config,
        pool=mesh.pool,
        votes=mesh.votes,
    )


async def asked(mesh: Mesh, telemetry: InMemoryTelemetry, question: Ask) -> None:
    """Runs an ask as an RPC would."""
    pipeline = recorded(mesh, telemetry)
    with telemetry.tracer.start_as_current_span("Ask"):
        async for _ in pipeline.ask(question, Deadline.after(60)):
            pass


def counted(telemetry: InMemoryTelemetry, name: str) -> dict[tuple[str, ...], float]:
    """A counter by the values of its attributes, in the order of their names; zeros left out."""
    points = telemetry.metrics()[name].data.data_points
    return {
        tuple(str(v) for _, v in sorted(one.attributes.items())): one.value for one in points if one.value
    }


async def test_an_ask_that_works_is_ok(mesh: Mesh) -> None:
    telemetry = InMemoryTelemetry("orchestrator")
    await asked(mesh, telemetry, ask(reranker="cross-encoder"))
    assert counted(telemetry, "evenmesh.asks") == {("ask", "ok"): 1}
    assert "evenmesh.ask.degradations" not in telemetry.metrics()
    stages = telemetry.metrics()["evenmesh.ask.stage.duration"].data.data_points
    assert {one.attributes["stage"] for one in stages} == {"retrieve", "rerank", "generate", "observe"}
    (first,) = telemetry.metrics()["evenmesh.ask.first_word.duration"].data.data_points
    assert first.count == 1


async def test_a_degradation_is_counted_and_reported(mesh: Mesh) -> None:
    telemetry = InMemoryTelemetry("orchestrator")
    mesh.reranker.error = Unavailable("UPSTREAM_UNAVAILABLE", "it is away")
    await asked(mesh, telemetry, ask(reranker="cross-encoder"))
    assert counted(telemetry, "evenmesh.asks") == {("ask", "degraded"): 1}
    ((action, _, stage),) = counted(telemetry, "evenmesh.ask.degradations")
    assert (action, stage) == ("retriever-order", "rerank")
    spans = {span.name: span for span in telemetry.spans()}
    assert [event.name for event in spans["Ask"].events] == ["degraded"]
    assert (spans["Ask"].attributes or {})["evenmesh.ask.outcome"] == "degraded"
    assert (spans["rerank"].attributes or {})["error.type"] == "UPSTREAM_UNAVAILABLE"


async def test_an_ask_without_an_answer_failed(mesh: Mesh) -> None:
    telemetry = InMemoryTelemetry("orchestrator")
    mesh.retriever.error = Unavailable("UPSTREAM_UNAVAILABLE", "it is away")
    with pytest.raises(MeshError):
        await asked(mesh, telemetry, ask())
    assert counted(telemetry, "evenmesh.asks") == {("ask", "failed"): 1}


async def test_an_ask_whose_caller_goes_away_is_cancelled(mesh: Mesh) -> None:
    telemetry = InMemoryTelemetry("orchestrator")
    events = recorded(mesh, telemetry).ask(ask(), Deadline.after(60))
    await anext(events)
    await events.aclose()
    assert counted(telemetry, "evenmesh.asks") == {("ask", "cancelled"): 1}


async def test_ensembles_and_audits_are_asks_of_their_kind(mesh: Mesh) -> None:
    telemetry = InMemoryTelemetry("orchestrator")
    mesh.retriever.places["wiki"] = [passage(name) for name in "abcdef"]
    pipeline = recorded(mesh, telemetry)
    async for _ in pipeline.ensemble(ensemble("Wiki@2", "WikiDense@2"), Deadline.after(60)):
        pass
    async for _ in pipeline.audit(audit(), Deadline.after(60)):
        pass
    assert {kind for kind, _ in counted(telemetry, "evenmesh.asks")} == {"ensemble", "audit"}


async def test_rankings_drawn_over_a_rerankers_scores_are_a_span(mesh: Mesh) -> None:
    telemetry = InMemoryTelemetry("orchestrator")
    sampling = pb.AskRequest(question="?").sampling
    sampling.alpha, sampling.num_rankings, sampling.seed = 2.0, 3, 7
    question = ask(
        reranker="cross-encoder", sampling=sampling, sampling_stage=pb.SAMPLING_STAGE_RERANKER, num_answers=1
    )
    await asked(mesh, telemetry, question)
    spans = {span.name: dict(span.attributes or {}) for span in telemetry.spans()}
    drawn = {
        "evenmesh.sampling.alpha": 2.0,
        "evenmesh.sampling.seed": 7,
        "evenmesh.sampling.rankings": 3,
    }
    assert spans["sample"] == drawn
    assert spans["Ask"].items() >= drawn.items()


@pytest.mark.parametrize("text", [False, True])
async def test_words_are_in_spans_only_where_settings_say_so(mesh: Mesh, text: bool) -> None:
    telemetry = InMemoryTelemetry("orchestrator", text=text)
    await asked(mesh, telemetry, ask(question="Which river?", reranker="cross-encoder"))
    everything = "".join(span.to_json() for span in telemetry.spans())
    assert ("Which river?" in everything) is text
    assert ("About a." in everything) is text


async def test_an_observation_takes_its_trace_along() -> None:
    telemetry = InMemoryTelemetry("orchestrator")
    encode = tracing.encoder(lambda _: evaluator_pb.Observation(id="o", question="q").SerializeToString())
    nothing: Any = None
    with telemetry.tracer.start_as_current_span("observe") as span:
        read = evaluator_pb.Observation.FromString(encode(nothing))
    assert (read.id, read.question) == ("o", "q")
    parent = extract_context((("traceparent", read.trace_context),))
    there, here = trace.get_current_span(parent).get_span_context(), span.get_span_context()
    assert (there.trace_id, there.span_id) == (here.trace_id, here.span_id)
    assert not evaluator_pb.Observation.FromString(encode(nothing)).trace_context


@pytest.fixture
async def outbox(tmp_path: Path) -> AsyncIterator[tuple[RecordedOutbox, InMemoryTelemetry]]:
    """An open, empty outbox for two, recorded."""
    telemetry = InMemoryTelemetry("orchestrator")
    one = RecordedOutbox(telemetry, tmp_path / "outbox.db", capacity=2, tenant_share=1.0)
    await one.open()
    yield one, telemetry
    await one.close()


def payload(age_s: float) -> bytes:
    """An observation made so long ago."""
    message = evaluator_pb.Observation(id="o")
    message.observed_at.FromMicroseconds(int((time.time() - age_s) * 1e6))
    return message.SerializeToString()


async def test_the_outbox_tells_what_waits_and_what_was_lost(
    outbox: tuple[RecordedOutbox, InMemoryTelemetry],
) -> None:
    subject, telemetry = outbox

    def value(name: str) -> float:
        (point,) = telemetry.metrics()[f"evenmesh.outbox.{name}"].data.data_points
        return float(point.value)

    assert (value("depth"), value("oldest.age"), value("capacity")) == (0, 0, 2)
    await subject.append("t", "a", payload(600.0))
    await subject.append("t", "b", payload(60.0))
    with pytest.raises(Unavailable):
        await subject.append("t", "c", payload(0.0))
    assert value("depth") == 2
    assert value("oldest.age") >= 600.0
    assert counted(telemetry, "evenmesh.outbox.dropped") == {("OUTBOX_FULL",): 1}
    first, second = await subject.waiting("t", after=0, limit=10)
    assert observed_at_s(first.payload) < observed_at_s(second.payload)
    await subject.remove([first.sequence])
    assert 60.0 <= value("oldest.age") < 600.0
    await subject.set_aside(second.sequence, "no")
    assert (value("delivered"), value("refused"), value("depth"), value("oldest.age")) == (1, 1, 0, 0)
