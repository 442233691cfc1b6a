"""What the evaluator tells of its work: observations, how far behind it is, and fairness of late."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, Protocol

from opentelemetry import trace
from opentelemetry.metrics import CallbackOptions
from opentelemetry.metrics import Observation as Point
from opentelemetry.trace import Link, Span, SpanKind

from meshkit.recorder import extracted
from meshkit.spans import Attributes, Spans, describe
from meshkit.telemetry import Telemetry
from ragmesh.evaluator.v1 import evaluator_service_pb2 as pb
from services.evaluator.domain import Measurement, Observation
from services.evaluator.fairness import QUANTITIES, Fairness, FairnessWindow, Series

_LAG_S: Final = [
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 86400.0,
]  # fmt: skip
_MEANT: Final = {
    "ee_d": "Expected exposure disparity",
    "ee_d_norm": "Normalised expected exposure disparity",
    "ee_r": "Expected exposure relevance",
    "ee_r_norm": "Normalised expected exposure relevance",
    "expected_utility": "Expected utility",
    "vote_agreement": "Agreement with the vote's winner",
}


class Receiving(Protocol):
    """What is told of one observation on its way."""

    def stored(self, observation: Observation, measurement: Measurement, *, new: bool) -> None:
        """It is stored for good, now or since an earlier time."""

    def refused(self) -> None:
        """It will never be."""


class EvaluatorMetrics:
    """Records it; costs nothing where telemetry is disabled.

    Args:
        telemetry: has meter and tracer.
        window_s: length of the window that fairness is told of. Seconds.
        series: most configurations that it is told of by name.
    """

    def __init__(self, telemetry: Telemetry, *, window_s: float = 3600.0, series: int = 20) -> None:
        self._enabled = telemetry.enabled
        self._spans = Spans(telemetry)
        self._window = FairnessWindow(window_s, series=series)
        self._backlog = 0
        meter = telemetry.meter
        self._counts = dict.fromkeys(("new", "duplicate", "refused"), 0)
        self._lag = meter.create_histogram(
            "ragmesh.evaluator.lag",
            "s",
            "From when an observation was made to when it counts.",
            explicit_bucket_boundaries_advisory=_LAG_S,
        )
        if not self._enabled:
            return
        # Kept as numbers and read when they are wanted: observing is too quick to pay for points.
        meter.create_observable_counter(
            "ragmesh.evaluator.observations",
            [lambda _: [Point(count, {"outcome": one}) for one, count in self._counts.items()]],
            "{observation}",
            "Observations, by what became of them.",
        )
        gauge = meter.create_observable_gauge
        gauge(
            "ragmesh.evaluator.backlog",
            [lambda _: [Point(self._backlog)]],
            "{observation}",
            "Observations received and not yet durable.",
        )
        gauge(
            "ragmesh.fairness.observations",
            [self._each(lambda one: float(one.num_observations))],
            "{observation}",
            "Observations in the window.",
        )
        for name in QUANTITIES:
            gauge(
                f"ragmesh.fairness.{name}",
                [self._each(lambda one, name=name: one.mean(name))],  # type: ignore[misc]
                "1",
                f"{_MEANT[name]}, mean over the window.",
            )
        gauge(
            "ragmesh.fairness.provider.exposure.ratio",
            [self._each(lambda one: one.exposure_ratio)],
            "1",
            "Least over most exposure of the providers in the window: 1 is even.",
        )
        gauge(
            "ragmesh.fairness.provider.exposure.share",
            [self._shares],
            "1",
            "Share of a provider in its collection's exposure in the window.",
        )

    def receiving(self, message: pb.Observation) -> AbstractContextManager[Receiving]:
        """Records the block as what is done with an observation that came; it tells the outcome.

        Where the observation says of which trace its ask is, the block is a span `observe` of that trace,
        linked to that of the stream it came by.
        """
        return self._receiving(message) if self._enabled else nullcontext(_UNRECORDED)

    @contextmanager
    def _receiving(self, message: pb.Observation) -> Iterator[Receiving]:
        def asked() -> Attributes:
            run_id = message.run_id if self._spans.text else None
            return {"ragmesh.ask.id": message.id, "ragmesh.run.id": run_id}

        self._backlog += 1
        try:
            if not message.trace_context:
                # Without a trace of its own it is part of the stream's, and of no interest there.
                yield _Recorded(trace.INVALID_SPAN, self)
                return
            parent = extracted((("traceparent", message.trace_context),))
            stream = trace.get_current_span().get_span_context()
            links = [Link(stream)] if stream.is_valid else []
            with self._spans.within(
                "observe", asked, kind=SpanKind.CONSUMER, parent=parent, links=links
            ) as span:
                yield _Recorded(span, self)
        finally:
            self._backlog -= 1

    def _stored(self, span: Span, observation: Observation, measurement: Measurement, *, new: bool) -> None:
        self._counts["new" if new else "duplicate"] += 1
        if new:
            lag_s = max(0.0, time.time() - observation.observed_at_us / 1e6)
            self._lag.record(lag_s)
            self._window.add(observation, measurement)
            if span.is_recording():
                measured = {
                    f"ragmesh.fairness.{name}": measurement.quantities.get(name) for name in QUANTITIES
                }
                describe(span, {"ragmesh.evaluator.lag_s": lag_s, **measured})

    def _refused(self) -> None:
        self._counts["refused"] += 1

    def _each(self, read: Callable[[Fairness], float | None]) -> Callable[[CallbackOptions], Iterable[Point]]:
        def observe(_: CallbackOptions) -> Iterable[Point]:
            for key, one in self._window.read().items():
                value = read(one)
                if value is not None:
                    yield Point(value, _labels(key))

        return observe

    def _shares(self, _: CallbackOptions) -> Iterable[Point]:
        for one in self._window.shares():
            labels = {"tenant": one.tenant, "collection": one.collection, "provider": one.provider}
            yield Point(one.share, labels)


class _Recorded:
    """One observation of which is recorded what becomes of it."""

    def __init__(self, span: Span, metrics: EvaluatorMetrics) -> None:
        self._span = span
        self._metrics = metrics

    def stored(self, observation: Observation, measurement: Measurement, *, new: bool) -> None:
        self._metrics._stored(self._span, observation, measurement, new=new)

    def refused(self) -> None:
        self._metrics._refused()


class _Unrecorded:
    """One of which nothing is."""

    def stored(self, observation: Observation, measurement: Measurement, *, new: bool) -> None:
        """Nothing is recorded."""

    def refused(self) -> None:
        """Nothing is recorded."""


_UNRECORDED: Final = _Unrecorded()


def _labels(key: Series) -> dict[str, str]:
    return {
        "tenant": key.tenant,
        "collection": key.collection,
        "retriever": key.retriever,
        "reranker": key.reranker,
        "generator": key.generator,
        "alpha": key.alpha,
    }
