"""Telemetry that keeps its records in memory."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Metric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from evenmesh_kit.telemetry.setup import Telemetry


class InMemoryTelemetry(Telemetry):
    """The telemetry of a service of this name."""

    def __init__(self, name: str, *, trace_sample_ratio: float = 1.0, text: bool = False) -> None:
        resource = Resource.create({"service.name": name})
        sampler = ParentBased(TraceIdRatioBased(trace_sample_ratio))
        traces = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        traces.add_span_processor(SimpleSpanProcessor(self._exporter))
        meters = MeterProvider([self._reader], resource, shutdown_on_exit=False)
        super().__init__(
            traces.get_tracer("evenmesh"),
            meters.get_meter("evenmesh"),
            enabled=True,
            text=text,
            on_shutdown=(traces.shutdown, meters.shutdown),
        )

    def spans(self) -> Sequence[ReadableSpan]:
        """The ended spans, in the order of their ends."""
        return self._exporter.get_finished_spans()

    def metrics(self) -> dict[str, Metric]:
        """The current metrics by name."""
        data = self._reader.get_metrics_data()
        return {
            metric.name: metric
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
