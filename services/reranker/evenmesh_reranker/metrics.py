"""Metrics and spans of the reranker: pairs scored, batches, the served model, and feedback."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from opentelemetry.metrics import CallbackOptions, Observation

from evenmesh.wire.errors import MeshError, Unavailable
from evenmesh_kit.compute.tasks import cancel
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_kit.telemetry.spans import Attributes, Spans, describe, reason_of
from evenmesh_reranker.domain import Agent, Best, Passage, Scores
from evenmesh_reranker.feedback.domain import Outcome, RecordStatus
from evenmesh_reranker.ports import Reranker

_SECONDS: Final = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
]  # fmt: skip
_PAIRS: Final = [float(2**power) for power in range(11)]
_COUNT_S: Final = 30.0
_NOTHING: Final[AbstractContextManager[None]] = nullcontext()
_log = logging.getLogger("evenmesh.reranker.metrics")


@dataclass(frozen=True, slots=True)
class ServingModel:
    """What serves all agents of the tenant `default`; ``promoted_at`` is None if nothing was promoted."""

    version: str
    created_at: datetime
    promoted: bool
    promoted_at: datetime | None


@dataclass(frozen=True, slots=True)
class FeedbackSummary:
    """Feedback of all agents: items stored, and when the newest arrived. Microseconds since 1970."""

    stored: int
    newest_at_us: int | None


class RerankerMetrics:
    """Records the work of the reranker; costs nothing while telemetry is disabled."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.enabled = telemetry.enabled
        self._spans = Spans(telemetry)
        meter = telemetry.meter
        self._meter = meter
        durations = partial(meter.create_histogram, unit="s", explicit_bucket_boundaries_advisory=_SECONDS)
        self._durations = durations(
            "evenmesh.reranker.duration", description="Scoring of a request's passages."
        )
        self._pairs = meter.create_counter("evenmesh.reranker.pairs", "{pair}", "Pairs scored.")
        self._waits = durations(
            "evenmesh.reranker.queue.duration",
            description="Wait of pairs for a batch of the cross-encoder.",
        )
        self._sizes = meter.create_histogram(
            "evenmesh.reranker.batch.pairs",
            "{pair}",
            "Pairs that the cross-encoder read together.",
            explicit_bucket_boundaries_advisory=_PAIRS,
        )
        self._passes = durations(
            "evenmesh.reranker.batch.duration", description="One pass of the cross-encoder."
        )
        self._feedback = meter.create_counter(
            "evenmesh.reranker.feedback", "{item}", "Feedback taken in, by what became of it."
        )
        for outcome in ("stored", "duplicate", "refused"):
            self._feedback.add(0, {"outcome": outcome})

    def reranker(self, name: str, reranker: Reranker) -> Reranker:
        """Return the reranker of that name with its work recorded."""
        if not self.enabled:
            return reranker
        self._pairs.add(0, {"reranker": name})
        return _MeasuredReranker(name, reranker, self)

    @contextmanager
    def scoring(self, name: str, pairs: int, agent: Agent) -> Iterator[Callable[[Scores], None]]:
        """Record the block as the scoring of a request; pass its scores to the callable that it yields."""
        began = time.perf_counter()

        def attributes() -> Attributes:
            return {
                "evenmesh.reranker": name,
                "evenmesh.reranker.pairs": pairs,
                "evenmesh.agent.task_id": agent.task_id if self._spans.text else None,
                "evenmesh.agent.model_id": agent.model_id if self._spans.text else None,
            }

        with self._spans.within("score", attributes) as span:

            def scored(scores: Scores) -> None:
                read = sum(map(math.isfinite, scores.values))
                self._pairs.add(read, {"reranker": name})
                describe(span, {"evenmesh.reranker.model.version": scores.model_version})
                if read < pairs:
                    describe(span, {"evenmesh.reranker.pairs.unscored": pairs - read})

            failed: dict[str, str] = {}
            try:
                yield scored
            except BaseException as error:
                failed["error.type"] = reason_of(error)
                raise
            finally:
                self._durations.record(time.perf_counter() - began, {"reranker": name, **failed})

    def queued(self, waits: Sequence[float]) -> None:
        """Record how long the parts of a batch have waited. Seconds."""
        for wait in waits:
            self._waits.record(wait)

    def batch(self, pairs: int) -> AbstractContextManager[None]:
        """Record the block as a pass over that many pairs; any thread may call."""
        return self._batch(pairs) if self.enabled else _NOTHING

    def watch_queue(self, waiting: Callable[[], int]) -> None:
        """Observe how many pairs wait for a batch whenever metrics are collected."""
        if self.enabled:
            self._meter.create_observable_gauge(
                "evenmesh.reranker.queue.depth",
                [lambda _: [Observation(waiting())]],
                "{pair}",
                "Pairs that wait for a batch of the cross-encoder.",
            )

    def watch_model(self, serving: Callable[[], ServingModel | None]) -> None:
        """Observe the served model whenever metrics are collected."""
        if not self.enabled:
            return

        def info(_: CallbackOptions) -> Iterable[Observation]:
            if (model := serving()) is not None:
                origin = "promoted" if model.promoted else "settings"
                yield Observation(1, {"version": model.version, "origin": origin})

        def created(_: CallbackOptions) -> Iterable[Observation]:
            if (model := serving()) is not None:
                yield Observation(model.created_at.timestamp())

        def promoted(_: CallbackOptions) -> Iterable[Observation]:
            if (model := serving()) is not None and model.promoted_at is not None:
                yield Observation(model.promoted_at.timestamp())

        gauge, name = self._meter.create_observable_gauge, "evenmesh.reranker.model"
        gauge(f"{name}.info", [info], description="The version that serves all agents: 1.")
        made = "When the weights that serve were made, since 1970."
        gauge(f"{name}.created.timestamp", [created], "s", made)
        changed = "When what serves was last changed, since 1970."
        gauge(f"{name}.promoted.timestamp", [promoted], "s", changed)

    def recorded(self, outcomes: Sequence[Outcome | MeshError]) -> None:
        """Record the outcomes of a batch of feedback."""
        if not self.enabled:
            return
        for one in outcomes:
            outcome = "refused"
            if isinstance(one, Outcome):
                outcome = "duplicate" if one.status is RecordStatus.DUPLICATE else "stored"
            self._feedback.add(1, {"outcome": outcome})

    @contextmanager
    def _batch(self, pairs: int) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._passes.record(time.perf_counter() - began)
        self._sizes.record(pairs)


class FeedbackGauges:
    """Observes how much feedback the store has, by counting it from time to time: other processes add to it.

    Args:
        telemetry: has the meter; while it is disabled nothing is counted.
        summary: counts the feedback.
        every_s: time between two counts. Seconds, (0, inf).
    """

    def __init__(
        self,
        telemetry: Telemetry,
        summary: Callable[[], Awaitable[FeedbackSummary]],
        *,
        every_s: float = _COUNT_S,
    ) -> None:
        self._enabled = telemetry.enabled
        self._summary = summary
        self._every_s = every_s
        self._last: FeedbackSummary | None = None
        self._counting: asyncio.Task[None] | None = None
        if self._enabled:
            gauge = telemetry.meter.create_observable_gauge
            name = "evenmesh.reranker.feedback"
            gauge(f"{name}.stored", [self._stored], "{item}", "Items of feedback in the store.")
            newest = "When the newest item of feedback came, since 1970."
            gauge(f"{name}.newest.timestamp", [self._newest], "s", newest)

    def start(self) -> None:
        """Begin to count."""
        if self._enabled:
            self._counting = asyncio.create_task(self._count())

    async def close(self) -> None:
        """Stop counting."""
        await cancel(self._counting)

    async def _count(self) -> None:
        while True:
            try:
                self._last = await self._summary()
            except Unavailable as error:
                _log.warning("feedback cannot be counted: %s", error.reason)
            except Exception:  # noqa: BLE001 - this task must not end: the gauges would stand still, unnoticed
                _log.exception("feedback cannot be counted")
            await asyncio.sleep(self._every_s)

    def _stored(self, _: CallbackOptions) -> Iterable[Observation]:
        if self._last is not None:
            yield Observation(self._last.stored)

    def _newest(self, _: CallbackOptions) -> Iterable[Observation]:
        if self._last is not None and self._last.newest_at_us is not None:
            yield Observation(self._last.newest_at_us / 1e6)


class _MeasuredReranker:
    """A :class:`evenmesh_reranker.ports.Reranker` whose work is recorded."""

    def __init__(self, name: str, reranker: Reranker, metrics: RerankerMetrics) -> None:
        self._name = name
        self._reranker = reranker
        self._metrics = metrics

    async def score(
        self, query: str, passages: Sequence[Passage], agent: Agent, *, best: Best | None = None
    ) -> Scores:
        with self._metrics.scoring(self._name, len(passages), agent) as scored:
            scores = await self._reranker.score(query, passages, agent, best=best)
            scored(scores)
            return scores
