"""Traces and metrics of a service; nothing at all unless asked for.

OpenTelemetry's own gRPC instrumentation was not used: its asyncio server interceptor does not see statuses
sent with ``abort_with_status`` (as every error of this mesh is), its asyncio client interceptors replace
streaming calls by bare generators (no ``cancel()``, ``code()`` or ``read()`` of the call itself), neither
records metrics, and both make a span for every call of a trace that is not sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import grpc
from opentelemetry import metrics, trace
from opentelemetry.trace import SpanKind

from meshkit.freshness import Freshness
from meshkit.recorder import RpcRecorder
from meshkit.settings import ServiceSettings
from meshkit.traced_client import (
    TracedStreamStream,
    TracedStreamUnary,
    TracedSync,
    TracedUnaryStream,
    TracedUnaryUnary,
)
from meshkit.traced_server import TracedServer

if TYPE_CHECKING:
    from meshkit.exporters import InMemoryTelemetry


class Telemetry:
    """Tracer, meter, and the interceptors that feed them.

    Attributes:
        enabled: whether anything is recorded.
        text: whether spans may have text of users.
        tracer: for spans of a service's own.
        meter: for metrics of a service's own.
        freshness: tells of certificates and of files that are read again.
    """

    def __init__(
        self,
        tracer: trace.Tracer,
        meter: metrics.Meter,
        *,
        enabled: bool,
        text: bool = False,
        on_shutdown: Sequence[Callable[[], object]] = (),
    ) -> None:
        self.tracer = tracer
        self.meter = meter
        self.enabled = enabled
        self.text = text
        self.freshness = Freshness(meter, enabled=enabled)
        self._on_shutdown = on_shutdown
        self._server: tuple[grpc.aio.ServerInterceptor, ...] = ()
        self._client: tuple[grpc.aio.ClientInterceptor, ...] = ()
        self._sync_client: tuple[TracedSync, ...] = ()
        if enabled:
            self._server = (TracedServer(RpcRecorder(SpanKind.SERVER, tracer, meter)),)
            calls = RpcRecorder(SpanKind.CLIENT, tracer, meter)
            kinds = (TracedUnaryUnary, TracedUnaryStream, TracedStreamUnary, TracedStreamStream)
            self._client = tuple(kind(calls) for kind in kinds)
            self._sync_client = (TracedSync(calls),)

    @classmethod
    def disabled(cls) -> Telemetry:
        """Telemetry that does nothing and installs nothing."""
        return cls(trace.NoOpTracer(), metrics.NoOpMeter("ragmesh"), enabled=False)

    @classmethod
    def from_settings(cls, name: str, settings: ServiceSettings) -> Telemetry:
        """Telemetry as the settings want it: OTLP, Prometheus, both, or disabled.

        Args:
            name: the service's name, ``service.name`` of all it records.
            settings: ``otlp_endpoint``, ``metrics_port``, ``trace_sample_ratio``, ``trace_text``.

        Raises:
            SettingsError: an exporter is not installed, or the metrics port is taken.
        """
        if settings.otlp_endpoint is None and settings.metrics_port is None:
            return cls.disabled()
        from meshkit import exporters

        return exporters.from_settings(name, settings)

    @staticmethod
    def in_memory(name: str, *, trace_sample_ratio: float = 1.0, text: bool = False) -> InMemoryTelemetry:
        """Telemetry that keeps what it records: ``spans()`` and ``metrics()``, for tests."""
        from meshkit import exporters

        return exporters.InMemoryTelemetry(name, trace_sample_ratio, text=text)

    def server_interceptors(self) -> Sequence[grpc.aio.ServerInterceptor]:
        """Interceptors for a server, outermost first; none when disabled."""
        return self._server

    def client_interceptors(self) -> Sequence[grpc.aio.ClientInterceptor]:
        """Interceptors for channels, one per kind of call; none when disabled."""
        return self._client

    def sync_client_interceptors(self) -> Sequence[TracedSync]:
        """Interceptors for channels without event loop; none when disabled."""
        return self._sync_client

    def shutdown(self) -> None:
        """Sends what is still to be sent and stops; takes seconds where a collector does not answer."""
        for stop in self._on_shutdown:
            stop()
