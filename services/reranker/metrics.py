"""What the reranker tells of its work: pairs scored, batches, the model that serves, and feedback."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from opentelemetry.metrics import CallbackOptions, Observation

from meshkit.errors import MeshError, Unavailable
from meshkit.spans import Attributes, Spans, describe, reason_of
from meshkit.telemetry import Telemetry
from services.reranker.domain import Agent, Best, Passage, Scores
from services.reranker.feedback.domain import Fate, Outcome
from services.reranker.ports import Reranker

_SECONDS: Final = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
]  # fmt: skip
_PAIRS: Final = [float(2**power) for power in range(11)]
_LOOK_S: Final = 30.0
_NOTHING: Final[AbstractContextManager[None]] = nullcontext()
_log = logging.getLogger("ragmesh.reranker.metrics")


@dataclass(frozen=True, slots=True)
class ServingModel:
    """What serves all agents of the tenant `default`; ``promoted_at`` is None where nothing ever was."""

    version: str
    created_at: datetime
    promoted: bool
    promoted_at: datetime | None


@dataclass(frozen=True, slots=True)
class FeedbackSummary:
    """Feedback of all agents: items stored, and when the newest came. Microseconds since 1970."""

    stored: int
    newest_at_us: int | None


class RerankerMetrics:
    """Records it; costs nothing where telemetry is disabled."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.enabled = telemetry.enabled
        self._spans = Spans(telemetry)
        meter = telemetry.meter
        self._meter = meter
        self._durations = meter.create_histogram(
            "ragmesh.reranker.duration",
            "s",
            "Scoring of a request's passages.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._pairs = meter.create_counter("ragmesh.reranker.pairs", "{pair}", "Pairs scored.")
        self._waits = meter.create_histogram(
            "ragmesh.reranker.queue.duration",
            "s",
            "Wait of pairs for a batch of the cross-encoder.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._sizes = meter.create_histogram(
            "ragmesh.reranker.batch.pairs",
            "{pair}",
            "Pairs that the cross-encoder read together.",
            explicit_bucket_boundaries_advisory=_PAIRS,
        )
        self._passes = meter.create_histogram(
            "ragmesh.reranker.batch.duration",
            "s",
            "One pass of the cross-encoder.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._feedback = meter.create_counter(
            "ragmesh.reranker.feedback", "{item}", "Feedback taken in, by what became of it."
        )
        for outcome in ("stored", "duplicate", "refused"):
            self._feedback.add(0, {"outcome": outcome})

    def reranker(self, name: str, reranker: Reranker) -> Reranker:
        """The reranker of that name, recorded."""
        if not self.enabled:
            return reranker
        self._pairs.add(0, {"reranker": name})
        return _MeasuredReranker(name, reranker, self)

    @contextmanager
    def scoring(self, name: str, pairs: int, agent: Agent) -> Iterator[Callable[[Scores], None]]:
        """Records the block as the scoring of a request; what it gives is to be told the scores."""
        began = time.perf_counter()

        def asked() -> Attributes:
            return {
                "ragmesh.reranker": name,
                "ragmesh.reranker.pairs": pairs,
                "ragmesh.agent.task_id": agent.task_id if self._spans.text else None,
                "ragmesh.agent.model_id": agent.model_id if self._spans.text else None,
            }

        with self._spans.within("score", asked) as span:

            def scored(scores: Scores) -> None:
                read = sum(map(math.isfinite, scores.values))
                self._pairs.add(read, {"reranker": name})
                describe(span, {"ragmesh.reranker.model.version": scores.model_version})
                if read < pairs:
                    describe(span, {"ragmesh.reranker.pairs.unscored": pairs - read})

            failed: dict[str, str] = {}
            try:
                yield scored
            except BaseException as error:
                failed["error.type"] = reason_of(error)
                raise
            finally:
                self._durations.record(time.perf_counter() - began, {"reranker": name, **failed})

    def queued(self, waits: Sequence[float]) -> None:
        """Records how long what a batch is made of has waited. Seconds."""
        for wait in waits:
            self._waits.record(wait)

    def batch(self, pairs: int) -> AbstractContextManager[None]:
        """Records the block as a pass over that many pairs; in any thread."""
        return self._batch(pairs) if self.enabled else _NOTHING

    def watch_queue(self, waiting: Callable[[], int]) -> None:
        """Has the pairs that wait for a batch read whenever metrics are collected."""
        if self.enabled:
            self._meter.create_observable_gauge(
                "ragmesh.reranker.queue.depth",
                [lambda _: [Observation(waiting())]],
                "{pair}",
                "Pairs that wait for a batch of the cross-encoder.",
            )

    def watch_model(self, serving: Callable[[], ServingModel | None]) -> None:
        """Has what serves read whenever metrics are collected."""
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

        gauge = self._meter.create_observable_gauge
        gauge("ragmesh.reranker.model.info", [info], description="The version that serves all agents: 1.")
        gauge(
            "ragmesh.reranker.model.created.timestamp",
            [created],
            "s",
            "When the weights that serve were made, since 1970.",
        )
        gauge(
            "ragmesh.reranker.model.promoted.timestamp",
            [promoted],
            "s",
            "When what serves was last changed, since 1970.",
        )

    def fed(self, outcomes: Sequence[Outcome | MeshError]) -> None:
        """Records what became of a batch of feedback."""
        if not self.enabled:
            return
        for one in outcomes:
            outcome = "refused"
            if isinstance(one, Outcome):
                outcome = "duplicate" if one.fate is Fate.DUPLICATE else "stored"
            self._feedback.add(1, {"outcome": outcome})

    @contextmanager
    def _batch(self, pairs: int) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._passes.record(time.perf_counter() - began)
        self._sizes.record(pairs)


class FeedbackLook:
    """Looks at what feedback there is, once in a while: other processes take some in too.

    Args:
        telemetry: has the meter; where it is disabled nothing is looked at.
        summary: gives it.
        every_s: time between two looks. Seconds, (0, inf).
    """

    def __init__(
        self,
        telemetry: Telemetry,
        summary: Callable[[], Awaitable[FeedbackSummary]],
        *,
        every_s: float = _LOOK_S,
    ) -> None:
        self._enabled = telemetry.enabled
        self._summary = summary
        self._every_s = every_s
        self._seen: FeedbackSummary | None = None
        self._looking: asyncio.Task[None] | None = None
        if self._enabled:
            gauge = telemetry.meter.create_observable_gauge
            gauge(
                "ragmesh.reranker.feedback.stored",
                [self._stored],
                "{item}",
                "Items of feedback in the store.",
            )
            gauge(
                "ragmesh.reranker.feedback.newest.timestamp",
                [self._newest],
                "s",
                "When the newest item of feedback came, since 1970.",
            )

    def start(self) -> None:
        """Begins to look."""
        if self._enabled:
            self._looking = asyncio.create_task(self._look_for_ever())

    async def close(self) -> None:
        """Looks no more."""
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking

    async def _look_for_ever(self) -> None:
        while True:
            try:
                self._seen = await self._summary()
            except Unavailable as error:  # who gives feedback is told
                _log.warning("feedback cannot be counted: %s", error.reason)
            await asyncio.sleep(self._every_s)

    def _stored(self, _: CallbackOptions) -> Iterable[Observation]:
        if self._seen is not None:
            yield Observation(self._seen.stored)

    def _newest(self, _: CallbackOptions) -> Iterable[Observation]:
        if self._seen is not None and self._seen.newest_at_us is not None:
            yield Observation(self._seen.newest_at_us / 1e6)


class _MeasuredReranker:
    """A :class:`services.reranker.ports.Reranker`, recorded."""

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
