"""Export telemetry to an OTLP collector or a Prometheus scrape; imported only if one is set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.trace import Tracer

from evenmesh_kit.settings import ServiceSettings, SettingsError, variable
from evenmesh_kit.telemetry.collector import CollectorHeaders, collector_credentials, collector_headers

_SCOPE: Final = "evenmesh"
_EXTRA: Final = "./libs/kit[telemetry]"
_TIMEOUT_S: Final = 5


@dataclass(frozen=True, slots=True)
class Exporting:
    """Where a service's spans and metrics go.

    Attributes:
        tracer: tracer whose spans are exported.
        meter: meter whose metrics are exported.
        on_shutdown: send the rest, and stop; in order.
        headers: headers that a collector is sent; None without any.
    """

    tracer: Tracer
    meter: Meter
    on_shutdown: Sequence[Callable[[], object]]
    headers: CollectorHeaders | None = None


def from_settings(name: str, settings: ServiceSettings) -> Exporting:
    """Return the exporters that the settings name; see ``Telemetry.from_settings``."""
    processors: list[SpanProcessor] = []
    readers: list[MetricReader] = []
    on_shutdown: list[Callable[[], object]] = []
    headers = None
    if settings.otlp_endpoint is not None:
        headers = collector_headers(settings)
        processor, reader = _otlp(settings, settings.otlp_endpoint, headers)
        processors.append(processor)
        readers.append(reader)
    if settings.metrics_port is not None:
        reader, stop = _prometheus(settings, settings.metrics_port)
        readers.append(reader)
        on_shutdown.append(stop)
    # Without an exporter of spans none are made; the trace context still travels.
    sampler = ParentBased(TraceIdRatioBased(settings.trace_sample_ratio)) if processors else ALWAYS_OFF
    resource = Resource.create({"service.name": name})
    traces = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
    for processor in processors:
        traces.add_span_processor(processor)
    meters = MeterProvider(readers, resource, shutdown_on_exit=False)
    return Exporting(
        traces.get_tracer(_SCOPE),
        meters.get_meter(_SCOPE),
        (traces.shutdown, meters.shutdown, *on_shutdown),
        headers,
    )


def _otlp(
    settings: ServiceSettings, endpoint: str, headers: CollectorHeaders | None
) -> tuple[SpanProcessor, MetricReader]:
    try:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    except ModuleNotFoundError:
        raise _not_installed(settings, "otlp_endpoint") from None
    credentials = collector_credentials(settings, headers)
    given: dict[str, Any] = {
        "insecure": credentials is None,
        "credentials": credentials,
        "timeout": _TIMEOUT_S,
    }
    return (
        BatchSpanProcessor(OTLPSpanExporter(endpoint, **given)),
        PeriodicExportingMetricReader(OTLPMetricExporter(endpoint, **given)),
    )


def _prometheus(settings: ServiceSettings, port: int) -> tuple[MetricReader, Callable[[], object]]:
    try:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from prometheus_client import start_http_server
    except ModuleNotFoundError:
        raise _not_installed(settings, "metrics_port") from None
    try:
        server, _ = start_http_server(port, addr=settings.metrics_host)
    except OSError as error:
        name = variable(settings, "metrics_port")
        why = f"cannot listen on {settings.metrics_host}: {error.strerror}"
        raise SettingsError(f"{name}={port}: {why}") from None
    # Label each series with its service; the scope is the same for all, so leave it out.
    reader = PrometheusMetricReader(
        scope_info_enabled=False, resource_attribute_filter=lambda key: key == "service.name"
    )
    return reader, server.shutdown


def _not_installed(settings: ServiceSettings, field: str) -> SettingsError:
    return SettingsError(
        f"{variable(settings, field)} is set, but its exporter is not installed: "
        f"in a checkout, pip install '{_EXTRA}'"
    )
