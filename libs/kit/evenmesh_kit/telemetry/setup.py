"""Traces and metrics of a service; off by default.

OpenTelemetry's own gRPC instrumentation is not used: its asyncio server interceptor misses statuses sent with
``abort_with_status``, as every error of this mesh is; its asyncio client interceptors replace streaming calls
by bare generators without ``cancel()``, ``code()`` and ``read()``; neither records metrics; and both make a
span for every call of a trace that is not sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import grpc
from opentelemetry import metrics, trace
from opentelemetry.trace import SpanKind

from evenmesh_kit.rpc.handlers import HandlerInterceptor
from evenmesh_kit.settings import ServiceSettings
from evenmesh_kit.telemetry.client_interceptors import TracedSync, traced
from evenmesh_kit.telemetry.recorder import RpcRecorder
from evenmesh_kit.telemetry.reload_monitor import ReloadMonitor
from evenmesh_kit.telemetry.server_interceptor import TracedServer

if TYPE_CHECKING:
    from evenmesh.wire.certificates import Certificates
    from evenmesh.wire.credentials import TokenFile


class Telemetry:
    """Tracer, meter, and the interceptors that feed them.

    Attributes:
        enabled: whether anything is recorded.
        text: whether spans may have text of users.
        tracer: tracer for a service's own spans.
        meter: meter for a service's own metrics.
        reloads: reports on certificates and reloaded files.
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
        self.reloads = ReloadMonitor(meter, enabled=enabled)
        self._on_shutdown = on_shutdown
        self._server: tuple[HandlerInterceptor, ...] = ()
        self._client: tuple[grpc.aio.ClientInterceptor, ...] = ()
        self._sync_client: tuple[TracedSync, ...] = ()
        if enabled:
            self._server = (TracedServer(RpcRecorder(SpanKind.SERVER, tracer, meter)),)
            calls = RpcRecorder(SpanKind.CLIENT, tracer, meter)
            self._client = tuple(traced(calls))
            self._sync_client = (TracedSync(calls),)

    def watch_channel(self, tokens: TokenFile | None, certificates: Certificates | None) -> None:
        """Report when a channel's token or certificates can no longer be used."""
        if tokens is not None:
            self.reloads.watch("token", tokens)
        if certificates is not None:
            self.reloads.watch_certificates("client", certificates)

    @classmethod
    def disabled(cls) -> Telemetry:
        """Return telemetry that does nothing and installs nothing."""
        return cls(trace.NoOpTracer(), metrics.NoOpMeter("evenmesh"), enabled=False)

    @classmethod
    def from_settings(cls, name: str, settings: ServiceSettings) -> Telemetry:
        """Return the telemetry of settings: OTLP, Prometheus, both, or disabled.

        Args:
            name: name of the service, ``service.name`` of all its records.
            settings: ``otlp_…``, ``metrics_port``, ``trace_sample_ratio``, ``trace_text``.

        Raises:
            SettingsError: an exporter is not installed, a file cannot be used, or the metrics port is taken.
        """
        if settings.otlp_endpoint is None and settings.metrics_port is None:
            return cls.disabled()
        from evenmesh_kit.telemetry import exporters

        exporting = exporters.from_settings(name, settings)
        telemetry = cls(
            exporting.tracer,
            exporting.meter,
            enabled=True,
            text=settings.trace_text,
            on_shutdown=exporting.on_shutdown,
        )
        if exporting.headers is not None:
            telemetry.reloads.watch("otlp_headers", exporting.headers)
        return telemetry

    def server_interceptors(self) -> Sequence[HandlerInterceptor]:
        """Return the interceptors of a server, outermost first; none when disabled."""
        return self._server

    def client_interceptors(self) -> Sequence[grpc.aio.ClientInterceptor]:
        """Return the interceptors of channels, one per kind of call; none when disabled."""
        return self._client

    def sync_client_interceptors(self) -> Sequence[TracedSync]:
        """Return the interceptors of channels without an event loop; none when disabled."""
        return self._sync_client

    def shutdown(self) -> None:
        """Send the rest and stop; takes seconds if a collector does not answer."""
        for stop in self._on_shutdown:
            stop()
