"""Channels to the services, on which the gateway has no credential of its own."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evenmesh._async.restarts import AsyncRestarts
from evenmesh.wire.certificates import CertificateError, Certificates
from evenmesh.wire.channel import connect
from evenmesh.wire.security import SYSTEM, ChannelSecurity
from evenmesh_gateway.methods import PublicMethod, public_methods
from evenmesh_kit.process.start import ServerStartError

if TYPE_CHECKING:
    from evenmesh_gateway.settings import GatewaySettings
    from evenmesh_kit.telemetry.setup import Telemetry

_HEALTH_TIMEOUT_S: Final = 2.0


class Upstreams:
    """The methods of the services, which take and give messages in bytes. Create it in a running event loop.

    A message passes unread: the service that answers checks its size and its bounds before it decodes it.

    Args:
        settings: where the services are, and the certificates.
        telemetry: records the calls.

    Raises:
        ServerStartError: a file of the certificates cannot be used.

    Attributes:
        restarts: decides which failed calls are sent again, and when.
    """

    def __init__(self, settings: GatewaySettings, telemetry: Telemetry) -> None:
        self.restarts = AsyncRestarts()
        security = ChannelSecurity(_certificates(settings))
        services = {method.service: method.upstream for method in public_methods().values()}
        self._channels = {
            service: connect(
                getattr(settings, f"{upstream}_target"),
                service=service,
                max_message_bytes=settings.max_message_bytes,
                telemetry=telemetry,
                security=security,
            )
            for service, upstream in services.items()
        }
        self._calls = {path: self._call(method) for path, method in public_methods().items()}
        self._connecting: list[asyncio.Task[None]] = []

    def connect(self) -> None:
        """Connect to each service in the background: one that is away later is then known to be restarted.

        Without this a service that nobody has called yet would count as one that was never there.
        """
        channels = {method.upstream: self.channel(method) for method in public_methods().values()}
        self._connecting = [asyncio.create_task(self._reach(*one)) for one in channels.items()]

    async def _reach(self, service: str, channel: grpc.aio.Channel) -> None:
        await channel.channel_ready()
        self.restarts.reached(service)

    def call(self, method: PublicMethod) -> Any:
        """Return what calls a method, of the kind of ``grpc.aio``; requests and replies are bytes."""
        return self._calls[method.path]

    def channel(self, method: PublicMethod) -> grpc.aio.Channel:
        """Return the channel on which a method is called."""
        return self._channels[method.service]

    async def health(self) -> dict[str, dict[str, str | float]]:
        """Return what each service says of itself: ``state``, and ``ms`` until it answered. Milliseconds."""
        ways = {service.split(".")[1]: channel for service, channel in self._channels.items()}
        return dict(zip(ways, await asyncio.gather(*map(_health, ways.values())), strict=True))

    async def close(self) -> None:
        """Close the channels; calls in progress fail."""
        self.restarts.close()
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))

    def _call(self, method: PublicMethod) -> Any:
        channel = self._channels[method.service]
        kind = {
            (False, False): channel.unary_unary,
            (False, True): channel.unary_stream,
            (True, False): channel.stream_unary,
            (True, True): channel.stream_stream,
        }[method.streams_requests, method.streams_replies]
        return kind(method.path)


async def _health(channel: grpc.aio.Channel) -> dict[str, str | float]:
    began = time.perf_counter()
    try:
        reply = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=_HEALTH_TIMEOUT_S
        )
    except grpc.aio.AioRpcError:
        return {"state": "unreachable"}
    serving = reply.status == health_pb2.HealthCheckResponse.SERVING
    took_ms = round(1e3 * (time.perf_counter() - began), 1)
    return {"state": "serving" if serving else "not serving", "ms": took_ms}


def _certificates(settings: GatewaySettings) -> Certificates | None:
    if settings.tls_ca is None:
        return None
    authorities = None if str(settings.tls_ca) == SYSTEM else settings.tls_ca
    try:
        return Certificates(settings.tls_cert, settings.tls_key, authorities)
    except CertificateError as error:
        raise ServerStartError(f"EVENMESH_TLS_CA, _CERT, _KEY: {error}") from None
