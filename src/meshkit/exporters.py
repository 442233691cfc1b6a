"""Where telemetry goes: an OTLP collector, a Prometheus scrape, or memory. Imported only if any is set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    Metric,
    MetricReader,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import Tracer

from meshkit.settings import ServiceSettings, SettingsError, variable
from meshkit.telemetry import Telemetry

_SCOPE: Final = "ragmesh"
_EXTRA: Final = "ragmesh[telemetry]"
_TIMEOUT_S: Final = 5


def from_settings(name: str, settings: ServiceSettings) -> Telemetry:
    """Telemetry with the exporters that the settings name; see :meth:`Telemetry.from_settings`."""
    processors: list[SpanProcessor] = []
    readers: list[MetricReader] = []
    on_shutdown: list[Callable[[], object]] = []
    if settings.otlp_endpoint is not None:
        processor, reader = _otlp(settings, settings.otlp_endpoint)
        processors.append(processor)
        readers.append(reader)
    if settings.metrics_port is not None:
        reader, stop = _prometheus(settings, settings.metrics_port)
        readers.append(reader)
        on_shutdown.append(stop)
    # Without anyone to send spans to, none are made; the trace context still travels.
    sampler = ParentBased(TraceIdRatioBased(settings.trace_sample_ratio)) if processors else ALWAYS_OFF
    tracer, meter, stops = _providers(name, sampler, processors, readers)
    return Telemetry(
        tracer, meter, enabled=True, text=settings.trace_text, on_shutdown=[*stops, *on_shutdown]
    )


class InMemoryTelemetry(Telemetry):
    """Telemetry that keeps what it records."""

    def __init__(self, name: str, trace_sample_ratio: float, *, text: bool = False) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        tracer, meter, stops = _providers(
            name,
            ParentBased(TraceIdRatioBased(trace_sample_ratio)),
            [SimpleSpanProcessor(self._exporter)],
            [self._reader],
        )
        super().__init__(tracer, meter, enabled=True, text=text, on_shutdown=stops)

    def spans(self) -> Sequence[ReadableSpan]:
        """The spans that have ended so far, in that order."""
        return self._exporter.get_finished_spans()

    def metrics(self) -> dict[str, Metric]:
        """The metrics as of now, by name."""
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


def _providers(
    name: str, sampler: Sampler, processors: Sequence[SpanProcessor], readers: Sequence[MetricReader]
) -> tuple[Tracer, Meter, list[Callable[[], object]]]:
    resource = Resource.create({"service.name": name})
    traces = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
    for processor in processors:
        traces.add_span_processor(processor)
    meters = MeterProvider(readers, resource, shutdown_on_exit=False)
    return traces.get_tracer(_SCOPE), meters.get_meter(_SCOPE), [traces.shutdown, meters.shutdown]


def _otlp(settings: ServiceSettings, endpoint: str) -> tuple[SpanProcessor, MetricReader]:
    try:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    except ModuleNotFoundError:
        raise _not_installed(settings, "otlp_endpoint") from None
    insecure = not endpoint.startswith("https://")
    return (
        BatchSpanProcessor(OTLPSpanExporter(endpoint, insecure=insecure, timeout=_TIMEOUT_S)),
        PeriodicExportingMetricReader(OTLPMetricExporter(endpoint, insecure=insecure, timeout=_TIMEOUT_S)),
    )


def _prometheus(settings: ServiceSettings, port: int) -> tuple[MetricReader, Callable[[], object]]:
    try:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from prometheus_client import start_http_server
    except ModuleNotFoundError:
        raise _not_installed(settings, "metrics_port") from None
    try:
        server, _ = start_http_server(port, addr=settings.host)
    except OSError as error:
        name = variable(settings, "metrics_port")
        raise SettingsError(f"{name}={port}: cannot listen on {settings.host}: {error.strerror}") from None
    # Whose a series is, whatever the scrape calls it; the scope is the same for all and says nothing.
    reader = PrometheusMetricReader(
        scope_info_enabled=False, resource_attribute_filter=lambda key: key == "service.name"
    )
    return reader, server.shutdown


def _not_installed(settings: ServiceSettings, field: str) -> SettingsError:
    return SettingsError(
        f"{variable(settings, field)} is set, but its exporter is not: pip install '{_EXTRA}'"
    )
