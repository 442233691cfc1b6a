"""Metrics of asks and of the outbox.

``evenmesh.asks`` and ``evenmesh.ask.duration`` have `kind` (`ask`, `ensemble` or `audit`; turns of
conversations are asks) and `outcome`: `ok`; `degraded`, an answer although a step failed; `failed`, an error,
or no answer where one was wanted; `cancelled`, the caller went away.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, closing
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from opentelemetry import trace
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.trace import Span

from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import MeshError
from evenmesh_kit.telemetry import gen_ai
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_kit.telemetry.spans import Attributes, Spans, describe, reason_of
from evenmesh_orchestrator import tracing
from evenmesh_orchestrator.asks.pipeline import Pipeline
from evenmesh_orchestrator.domain import (
    Answered,
    Ask,
    Audit,
    AuditEvent,
    Degraded,
    EnsembleAsk,
    Event,
    Finished,
    Ranked,
    Retrieved,
    word_of,
)
from evenmesh_orchestrator.observations.outbox import Outbox

E = TypeVar("E", bound=Event | AuditEvent)

OUTCOMES: Final = ("ok", "degraded", "failed", "cancelled")
_SECONDS: Final = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0]
_OLDEST: Final = "SELECT payload FROM outbox ORDER BY sequence LIMIT 1"


class AskMetrics:
    """Records asks in metrics and on the span of their RPC."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._text = telemetry.text
        meter = telemetry.meter
        self._asks = meter.create_counter("evenmesh.asks", "{ask}", "Asks ended, by kind and outcome.")
        durations = partial(meter.create_histogram, unit="s", explicit_bucket_boundaries_advisory=_SECONDS)
        self._durations = durations("evenmesh.ask.duration", description="Whole asks.")
        self._stages = durations("evenmesh.ask.stage.duration", description="Stages of asks.")
        self._first_words = durations(
            "evenmesh.ask.first_word.duration",
            description="From an ask to the first words of its first answer.",
        )
        self._degradations = meter.create_counter(
            "evenmesh.ask.degradations", "{degradation}", "Substitutes for failed steps."
        )
        for outcome in OUTCOMES:
            self._asks.add(0, {"kind": "ask", "outcome": outcome})

    async def record(
        self,
        kind: str,
        attributes: Callable[[], Attributes],
        events: AsyncGenerator[E, None],
        *,
        wanted: bool,
    ) -> AsyncGenerator[E, None]:
        """Yield the events unchanged, and record them.

        Args:
            kind: `ask`, `ensemble` or `audit`.
            attributes: returns the attributes of the ask.
            events: of the ask.
            wanted: whether the ask wants an answer.
        """
        span = trace.get_current_span()
        if span.is_recording():
            describe(span, attributes())
        began = time.perf_counter()
        progress = _Progress()
        outcome = "failed"
        try:
            async with aclosing(events) as happening:
                async for event in happening:
                    self._record(event, progress, span, began)
                    yield event
            if progress.answered or not wanted:
                outcome = "degraded" if progress.degraded else "ok"
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "cancelled"
            raise
        finally:
            labels = {"kind": kind, "outcome": outcome}
            self._asks.add(1, labels)
            self._durations.record(time.perf_counter() - began, labels)
            span.set_attribute("evenmesh.ask.outcome", outcome)

    def _record(self, event: Event | AuditEvent, progress: _Progress, span: Span, began: float) -> None:
        match event:
            case pb.Delta():
                if not progress.has_text:
                    progress.has_text = True
                    self._first_words.record(time.perf_counter() - began)
            case Retrieved(pool):
                if span.is_recording():
                    describe(span, {"evenmesh.index.version": pool.index_version or None})
            case Ranked(_, reranker, version):
                _describe_reranker(span, reranker, version)
            case pb.AuditSettled():
                _describe_reranker(span, event.reranker, event.reranker_version)
            case Answered(answer):
                if not progress.answered:
                    describe(span, {gen_ai.RESPONSE_MODEL: f"{answer.model}@{answer.model_version}"})
                progress.answered = True
                if self._text and span.is_recording():
                    span.add_event("answer", {"evenmesh.answer": answer.text})
            case pb.AuditSample():
                progress.answered = progress.answered or event.answered
            case pb.VoteEvent():
                progress.answered = True
            case Degraded():
                progress.degraded = True
                labels = {"stage": event.stage.value, "action": event.action.value, "reason": event.reason}
                self._degradations.add(1, labels)
                span.add_event("degraded", {f"evenmesh.{key}": value for key, value in labels.items()})
            case Finished():
                for stage, milliseconds in event.stage_ms.items():
                    self._stages.record(milliseconds / 1000, {"stage": stage.value})


class _Progress:
    """What the events of an ask have shown so far."""

    def __init__(self) -> None:
        self.has_text = self.answered = self.degraded = False


class RecordedPipeline(Pipeline):
    """A pipeline that records its asks.

    Args:
        metrics: records them.
        spans: creates spans.
        **parts: of a :class:`~evenmesh_orchestrator.asks.pipeline.Pipeline`.
    """

    def __init__(self, metrics: AskMetrics, spans: Spans, **parts: Any) -> None:
        super().__init__(
            **parts
            | {
                "retriever": tracing.TracedRetriever(parts["retriever"], spans),
                "reranker": tracing.TracedReranker(parts["reranker"], spans),
                "generator": tracing.TracedGenerator(parts["generator"], spans),
                "observer": tracing.TracedObserver(parts["observer"], spans),
                "around_draw": lambda sampling: spans.within(
                    "sample", lambda: tracing.sampling_attributes(sampling)
                ),
            }
        )
        self._metrics = metrics
        self._text = spans.text

    def ask(self, ask: Ask, deadline: Deadline) -> AsyncGenerator[Event, None]:
        """Run an ask and record it."""
        return self._metrics.record(
            "ask", lambda: self._attributes(ask), super().ask(ask, deadline), wanted=bool(ask.num_answers)
        )

    def ensemble(self, ensemble: EnsembleAsk, deadline: Deadline) -> AsyncGenerator[Event, None]:
        """Run an ensemble and record it."""

        def attributes() -> Attributes:
            members = tuple(one.expression.text for one in ensemble.members if one.expression is not None)
            return {**self._attributes(ensemble.ask), "evenmesh.ensemble.members": members}

        return self._metrics.record("ensemble", attributes, super().ensemble(ensemble, deadline), wanted=True)

    def audit(self, audit: Audit, deadline: Deadline) -> AsyncGenerator[AuditEvent, None]:
        """Run an audit and record it."""

        def attributes() -> Attributes:
            alphas = tuple(format(alpha, "g") for alpha in audit.alphas)
            return {**self._attributes(audit.ask), "evenmesh.audit.alphas": alphas}

        return self._metrics.record(
            "audit", attributes, super().audit(audit, deadline), wanted=bool(audit.ask.num_answers)
        )

    def _attributes(self, ask: Ask) -> Attributes:
        return {
            "evenmesh.ask.id": ask.id,
            "evenmesh.run.id": ask.run_id if self._text else None,
            gen_ai.DATA_SOURCE: ask.web or ask.collection or None,
            "evenmesh.retriever": (ask.expression.text if ask.expression is not None else ask.retriever)
            or None,
            "evenmesh.reranker": ask.reranker,
            gen_ai.REQUEST_MODEL: ask.model or None,
            "evenmesh.ask.k": ask.k,
            "evenmesh.ask.depth": ask.depth,
            "evenmesh.ask.rerank_depth": ask.rerank_depth,
            "evenmesh.ask.answers": ask.num_answers,
            "evenmesh.sampling.stage": word_of(pb.SamplingStage, ask.sampling_stage)
            if ask.sampling is not None
            else None,
            **tracing.sampling_attributes(ask.sampling),
            "evenmesh.ask.question": ask.question if self._text else None,
        }


class RecordedOutbox(Outbox):
    """An outbox with metrics: what waits, since when, what arrived, and what was lost.

    Args:
        telemetry: has the meter.
        path: the file.
        capacity: most observations stored.
        **limits: see :class:`~evenmesh_orchestrator.observations.outbox.Outbox`.
    """

    def __init__(self, telemetry: Telemetry, path: Path, *, capacity: int, **limits: Any) -> None:
        super().__init__(path, capacity=capacity, **limits)
        self._file = path
        meter = telemetry.meter
        self._delivered = meter.create_counter(
            "evenmesh.outbox.delivered", "{observation}", "Observations that the evaluator acknowledged."
        )
        self._refused = meter.create_counter(
            "evenmesh.outbox.refused", "{observation}", "Observations that the evaluator will never take."
        )
        self._dropped = meter.create_counter(
            "evenmesh.outbox.dropped", "{observation}", "Observations that could not be stored, by reason."
        )
        self._delivered.add(0)
        self._refused.add(0)
        self._dropped.add(0, {"reason": "OUTBOX_FULL"})
        meter.create_observable_gauge(
            "evenmesh.outbox.depth",
            [lambda _: [Observation(self.size)]],
            "{observation}",
            "Observations that wait for the evaluator's acknowledgement.",
        )
        meter.create_observable_gauge(
            "evenmesh.outbox.capacity",
            [lambda _: [Observation(capacity)]],
            "{observation}",
            "Most observations that may wait.",
        )
        meter.create_observable_gauge(
            "evenmesh.outbox.oldest.age", [self._age], "s", "Age of the oldest of them; 0 if there is none."
        )

    async def append(self, tenant: str, id_: str, payload: bytes, *, largest: int | None = None) -> None:
        """Store an observation, and count those that are lost."""
        try:
            await super().append(tenant, id_, payload, largest=largest)
        except MeshError as error:
            self._dropped.add(1, {"reason": reason_of(error)})
            raise

    async def remove(self, sequences: Sequence[int]) -> None:
        """Delete delivered entries, and count them."""
        await super().remove(sequences)
        self._delivered.add(len(sequences))

    async def set_aside(self, sequence: int, reason: str) -> None:
        """Set an entry aside, and count it."""
        await super().set_aside(sequence, reason)
        self._refused.add(1)

    def _age(self, _: CallbackOptions) -> list[Observation]:
        """Read the file over a new connection: this runs in the thread that collects metrics."""
        if not self.size:
            return [Observation(0.0)]
        try:
            with closing(
                sqlite3.connect(f"{self._file.absolute().as_uri()}?mode=ro", uri=True)
            ) as connection:
                row = connection.execute(_OLDEST).fetchone()
        except sqlite3.Error:
            return []  # submitting an observation reports a broken file
        return [Observation(0.0 if row is None else max(0.0, time.time() - observed_at_s(row[0])))]


def observed_at_s(payload: bytes) -> float:
    """Return when an encoded observation was made. Seconds since 1970."""
    at = evaluator_pb.Observation.FromString(payload).observed_at
    return float(at.seconds) + at.nanos / 1e9


def _describe_reranker(span: Span, reranker: str, version: str) -> None:
    describe(
        span,
        {"evenmesh.reranker": reranker or None, "evenmesh.reranker.model.version": version or None},
    )
