"""Metrics and spans of the evaluator: observations, its lag, and recent fairness."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from typing import Final

from opentelemetry import trace
from opentelemetry.metrics import CallbackOptions
from opentelemetry.metrics import Observation as Point
from opentelemetry.trace import Link, Span, SpanKind

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh_evaluator.domain import Measurement, Observation
from evenmesh_evaluator.reports.fairness_window import QUANTITIES, Fairness, FairnessWindow
from evenmesh_kit.telemetry.recorder import extract_context
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_kit.telemetry.spans import Attributes, Spans, describe

_LAG_S: Final = [
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 86400.0,
]  # fmt: skip
_DESCRIPTIONS: Final = {
    "ee_d": "Expected exposure disparity",
    "ee_d_norm": "Normalised expected exposure disparity",
    "ee_r": "Expected exposure relevance",
    "ee_r_norm": "Normalised expected exposure relevance",
    "expected_utility": "Expected utility",
    "vote_agreement": "Agreement with the vote's winner",
}


class EvaluatorMetrics:
    """Records metrics and spans; costs nothing where telemetry is disabled.

    Args:
        telemetry: provides meter and tracer.
        window_s: length of the window of fairness. Seconds.
        series: most configurations that have their own series.
    """

    def __init__(self, telemetry: Telemetry, *, window_s: float = 3600.0, series: int = 20) -> None:
        self._enabled = telemetry.enabled
        self._spans = Spans(telemetry)
        self._window = FairnessWindow(window_s, series=series)
        self._backlog = 0
        self._meter = meter = telemetry.meter
        self._counts = dict.fromkeys(("new", "duplicate", "refused"), 0)
        self._lag = meter.create_histogram(
            "evenmesh.evaluator.lag",
            "s",
            "From when an observation was made to when it counts.",
            explicit_bucket_boundaries_advisory=_LAG_S,
        )
        if not self._enabled:
            return
        # Plain numbers, read at each scrape: recording a point would cost too much for each observation.
        meter.create_observable_counter(
            "evenmesh.evaluator.observations",
            [lambda _: [Point(count, {"outcome": one}) for one, count in self._counts.items()]],
            "{observation}",
            "Observations, by outcome.",
        )
        gauge = meter.create_observable_gauge
        gauge(
            "evenmesh.evaluator.backlog",
            [lambda _: [Point(self._backlog)]],
            "{observation}",
            "Observations received and not yet durable.",
        )
        gauge(
            "evenmesh.fairness.observations",
            [self._each(lambda one: float(one.num_observations))],
            "{observation}",
            "Observations in the window.",
        )
        for name in QUANTITIES:
            gauge(
                f"evenmesh.fairness.{name}",
                [self._each(lambda one, name=name: one.mean(name))],  # type: ignore[misc]
                "1",
                f"{_DESCRIPTIONS[name]}, mean over the window.",
            )
        gauge(
            "evenmesh.fairness.provider.exposure.ratio",
            [self._each(lambda one: one.exposure_ratio)],
            "1",
            "Smallest over largest exposure of the providers in the window: 1 is even.",
        )
        gauge(
            "evenmesh.fairness.provider.exposure.share",
            [self._shares],
            "1",
            "Share of a provider in its collection's exposure in the window.",
        )

    def watch_log(self, waiting: Callable[[], int]) -> None:
        """Report how many observations wait in the log."""
        if self._enabled:
            self._meter.create_observable_gauge(
                "evenmesh.evaluator.log.entries",
                [lambda _: [Point(waiting())]],
                "{observation}",
                "Observations in the log that are not yet stored.",
            )

    def record(self, message: pb.Observation) -> AbstractContextManager[ObservationRecord]:
        """Record the block as the handling of one observation, whose outcome the block reports.

        If the observation carries the trace of its ask, the block is a span `observe` of that trace, linked
        to the span of the stream.
        """
        return self._record(message) if self._enabled else nullcontext(ObservationRecord())

    @contextmanager
    def _record(self, message: pb.Observation) -> Iterator[ObservationRecord]:
        def asked() -> Attributes:
            run_id = message.run_id if self._spans.text else None
            return {"evenmesh.ask.id": message.id, "evenmesh.run.id": run_id}

        self._backlog += 1
        try:
            if not message.trace_context:
                # It would be one of many alike in the stream's trace.
                yield ObservationRecord(self, trace.INVALID_SPAN)
                return
            parent = extract_context((("traceparent", message.trace_context),))
            stream = trace.get_current_span().get_span_context()
            links = [Link(stream)] if stream.is_valid else []
            with self._spans.within(
                "observe", asked, kind=SpanKind.CONSUMER, parent=parent, links=links
            ) as span:
                yield ObservationRecord(self, span)
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
                    f"evenmesh.fairness.{name}": measurement.quantities.get(name) for name in QUANTITIES
                }
                describe(span, {"evenmesh.evaluator.lag_s": lag_s, **measured})

    def _refused(self) -> None:
        self._counts["refused"] += 1

    def _each(self, read: Callable[[Fairness], float | None]) -> Callable[[CallbackOptions], Iterable[Point]]:
        def observe(_: CallbackOptions) -> Iterable[Point]:
            for key, one in self._window.read().items():
                value = read(one)
                if value is not None:
                    yield Point(value, asdict(key))

        return observe

    def _shares(self, _: CallbackOptions) -> Iterable[Point]:
        for one in self._window.shares():
            labels = {"tenant": one.tenant, "collection": one.collection, "provider": one.provider}
            yield Point(one.share, labels)


class ObservationRecord:
    """Records the outcome of one observation; without metrics it records nothing."""

    def __init__(self, metrics: EvaluatorMetrics | None = None, span: Span = trace.INVALID_SPAN) -> None:
        self._metrics = metrics
        self._span = span

    def stored(self, observation: Observation, measurement: Measurement, *, new: bool) -> None:
        """Record that the observation is stored, now or since an earlier time."""
        if self._metrics is not None:
            self._metrics._stored(self._span, observation, measurement, new=new)

    def refused(self) -> None:
        """Record that the observation was refused."""
        if self._metrics is not None:
            self._metrics._refused()
