"""What the orchestrator tells a metrics system: how asks end, and what waits in the outbox.

``ragmesh.asks`` and ``ragmesh.ask.duration`` have `kind` (`ask`, `ensemble` or `audit`; turns of
conversations are asks) and `outcome`: `ok`; `degraded`, an answer, and something was done instead of what was
wanted; `failed`, an error, or no answer where one was wanted; `cancelled`, the caller went away.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, closing
from pathlib import Path
from typing import Any, Final, TypeVar

from opentelemetry import trace
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.trace import Span

from meshkit.deadline import Deadline
from meshkit.errors import Unavailable
from meshkit.spans import Attributes, Spans, describe, reason_of
from meshkit.telemetry import Telemetry
from orchestrator import tracing
from orchestrator.domain import (
    Answered,
    Ask,
    Audit,
    AuditEvent,
    Degraded,
    Delta,
    EnsembleAsk,
    Event,
    Finished,
    Ranked,
    Retrieved,
    Sampled,
    Sampling,
    Settled,
    Voted,
)
from orchestrator.letters import observed_at_s
from orchestrator.outbox import Outbox
from orchestrator.pipeline import Pipeline

E = TypeVar("E", bound=Event | AuditEvent)

OUTCOMES: Final = ("ok", "degraded", "failed", "cancelled")
_SECONDS: Final = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0]
_OLDEST: Final = "SELECT payload FROM outbox WHERE refused IS NULL ORDER BY sequence LIMIT 1"


class AskMetrics:
    """Records how asks go, in metrics and on the span of the RPC they came by."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._text = telemetry.text
        meter = telemetry.meter
        self._asks = meter.create_counter("ragmesh.asks", "{ask}", "Asks ended, by kind and outcome.")
        self._durations = meter.create_histogram(
            "ragmesh.ask.duration", "s", "Whole asks.", explicit_bucket_boundaries_advisory=_SECONDS
        )
        self._stages = meter.create_histogram(
            "ragmesh.ask.stage.duration",
            "s",
            "Stages of asks.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._first_words = meter.create_histogram(
            "ragmesh.ask.first_word.duration",
            "s",
            "From an ask to the first words of its first answer.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._degradations = meter.create_counter(
            "ragmesh.ask.degradations", "{degradation}", "What was done instead where a step failed."
        )
        for outcome in OUTCOMES:
            self._asks.add(0, {"kind": "ask", "outcome": outcome})

    async def watched(
        self, kind: str, asked: Callable[[], Attributes], events: AsyncGenerator[E, None], *, wanted: bool
    ) -> AsyncGenerator[E, None]:
        """The events, as they are, and a record of them.

        Args:
            kind: `ask`, `ensemble` or `audit`.
            asked: gives the attributes of the ask.
            events: what happens.
            wanted: whether there should be an answer.
        """
        span = trace.get_current_span()
        if span.is_recording():
            describe(span, asked())
        began = time.perf_counter()
        heard = _Heard()
        outcome = "failed"
        try:
            async with aclosing(events) as happening:
                async for event in happening:
                    self._hear(event, heard, span, began)
                    yield event
            if heard.answered or not wanted:
                outcome = "degraded" if heard.degraded else "ok"
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "cancelled"
            raise
        finally:
            attributes = {"kind": kind, "outcome": outcome}
            self._asks.add(1, attributes)
            self._durations.record(time.perf_counter() - began, attributes)
            span.set_attribute("ragmesh.ask.outcome", outcome)

    def _hear(self, event: Event | AuditEvent, heard: _Heard, span: Span, began: float) -> None:
        match event:
            case Delta():
                if not heard.spoke:
                    heard.spoke = True
                    self._first_words.record(time.perf_counter() - began)
            case Retrieved(pool):
                if span.is_recording():
                    describe(span, {"ragmesh.index.version": pool.index_version or None})
            case Ranked() | Settled():
                version = {"ragmesh.reranker.model.version": event.model_version or None}
                describe(span, {"ragmesh.reranker": event.reranker or None, **version})
            case Answered(answer):
                if not heard.answered:
                    describe(span, {tracing.RESPONSE_MODEL: f"{answer.model}@{answer.model_version}"})
                heard.answered = True
                if self._text and span.is_recording():
                    span.add_event("answer", {"ragmesh.answer": answer.text})
            case Sampled():
                heard.answered = heard.answered or event.answer is not None
            case Voted():
                heard.answered = True
            case Degraded():
                heard.degraded = True
                told = {"stage": event.stage.value, "action": event.action.value, "reason": event.reason}
                self._degradations.add(1, told)
                span.add_event("degraded", {f"ragmesh.{key}": value for key, value in told.items()})
            case Finished():
                for stage, milliseconds in event.stage_ms.items():
                    self._stages.record(milliseconds / 1000, {"stage": stage.value})


class _Heard:
    """What was seen of an ask so far."""

    def __init__(self) -> None:
        self.spoke = self.answered = self.degraded = False


class WatchedPipeline(Pipeline):
    """A pipeline whose asks are recorded.

    Args:
        metrics: records them.
        spans: makes spans.
        **parts: of a :class:`~orchestrator.pipeline.Pipeline`.
    """

    def __init__(self, metrics: AskMetrics, spans: Spans, **parts: Any) -> None:
        super().__init__(
            **parts
            | {
                "retriever": tracing.TracedRetriever(parts["retriever"], spans),
                "reranker": tracing.TracedReranker(parts["reranker"], spans),
                "generator": tracing.TracedGenerator(parts["generator"], spans),
                "observer": tracing.TracedObserver(parts["observer"], spans),
            }
        )
        self._metrics = metrics
        self._spans = spans
        self._text = spans.text

    def ask(self, ask: Ask, deadline: Deadline) -> AsyncGenerator[Event, None]:
        """See :meth:`orchestrator.pipeline.Pipeline.ask`."""
        return self._metrics.watched(
            "ask", lambda: self._asked(ask), super().ask(ask, deadline), wanted=bool(ask.num_answers)
        )

    def ensemble(self, ensemble: EnsembleAsk, deadline: Deadline) -> AsyncGenerator[Event, None]:
        """See :meth:`orchestrator.pipeline.Pipeline.ensemble`."""

        def asked() -> Attributes:
            members = tuple(one.recipe.text for one in ensemble.members if one.recipe is not None)
            return {**self._asked(ensemble.ask), "ragmesh.ensemble.members": members}

        return self._metrics.watched("ensemble", asked, super().ensemble(ensemble, deadline), wanted=True)

    def audit(self, audit: Audit, deadline: Deadline) -> AsyncGenerator[AuditEvent, None]:
        """See :meth:`orchestrator.pipeline.Pipeline.audit`."""

        def asked() -> Attributes:
            alphas = tuple(format(alpha, "g") for alpha in audit.alphas)
            return {**self._asked(audit.ask), "ragmesh.audit.alphas": alphas}

        return self._metrics.watched(
            "audit", asked, super().audit(audit, deadline), wanted=bool(audit.ask.num_answers)
        )

    def _drawing(self, sampling: Sampling) -> AbstractContextManager[object]:
        return self._spans.within("sample", lambda: tracing.drawn(sampling))

    def _asked(self, ask: Ask) -> Attributes:
        return {
            "ragmesh.ask.id": ask.id,
            "ragmesh.run.id": ask.run_id if self._text else None,
            tracing.DATA_SOURCE: ask.web or ask.collection or None,
            "ragmesh.retriever": (ask.recipe.text if ask.recipe is not None else ask.retriever) or None,
            "ragmesh.reranker": ask.reranker,
            tracing.REQUEST_MODEL: ask.model or None,
            "ragmesh.ask.k": ask.k,
            "ragmesh.ask.depth": ask.depth,
            "ragmesh.ask.rerank_depth": ask.rerank_depth,
            "ragmesh.ask.answers": ask.num_answers,
            "ragmesh.sampling.stage": ask.sampling_stage.value if ask.sampling is not None else None,
            **tracing.drawn(ask.sampling),
            "ragmesh.ask.question": ask.question if self._text else None,
        }


class CountedOutbox(Outbox):
    """An outbox of which metrics tell: what waits, since when, what arrived, and what was lost.

    Args:
        telemetry: has the meter.
        path: the file.
        capacity: most observations kept.
        **limits: see :class:`~orchestrator.outbox.Outbox`.
    """

    def __init__(self, telemetry: Telemetry, path: Path, *, capacity: int, **limits: Any) -> None:
        super().__init__(path, capacity=capacity, **limits)
        self._at = path
        meter = telemetry.meter
        self._delivered = meter.create_counter(
            "ragmesh.outbox.delivered", "{observation}", "Observations that the evaluator acknowledged."
        )
        self._set_aside = meter.create_counter(
            "ragmesh.outbox.refused", "{observation}", "Observations that the evaluator will never take."
        )
        self._dropped = meter.create_counter(
            "ragmesh.outbox.dropped", "{observation}", "Observations that could not be kept, by reason."
        )
        self._delivered.add(0)
        self._set_aside.add(0)
        self._dropped.add(0, {"reason": "OUTBOX_FULL"})
        meter.create_observable_gauge(
            "ragmesh.outbox.depth",
            [lambda _: [Observation(self.size)]],
            "{observation}",
            "Observations that wait for the evaluator's acknowledgement.",
        )
        meter.create_observable_gauge(
            "ragmesh.outbox.capacity",
            [lambda _: [Observation(capacity)]],
            "{observation}",
            "Most observations that may wait.",
        )
        meter.create_observable_gauge(
            "ragmesh.outbox.oldest.age", [self._age], "s", "Age of the oldest of them; 0 if there is none."
        )

    async def append(self, tenant: str, id_: str, payload: bytes) -> None:
        """See the base class."""
        try:
            await super().append(tenant, id_, payload)
        except Unavailable as error:
            self._dropped.add(1, {"reason": reason_of(error)})
            raise

    async def remove(self, sequences: Sequence[int]) -> None:
        """See the base class."""
        await super().remove(sequences)
        self._delivered.add(len(sequences))

    async def refuse(self, sequence: int, why: str) -> None:
        """See the base class."""
        await super().refuse(sequence, why)
        self._set_aside.add(1)

    def _age(self, _: CallbackOptions) -> list[Observation]:
        """Read from the file, over a connection of its own: this is the thread of whoever reads metrics."""
        if not self.size:
            return [Observation(0.0)]
        try:
            with closing(sqlite3.connect(f"{self._at.absolute().as_uri()}?mode=ro", uri=True)) as connection:
                row = connection.execute(_OLDEST).fetchone()
        except sqlite3.Error:
            return []  # a file that cannot be read is told of by what is posted
        return [Observation(0.0 if row is None else max(0.0, time.time() - observed_at_s(row[0])))]
