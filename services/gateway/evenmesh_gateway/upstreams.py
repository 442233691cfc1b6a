"""Channels to the services, on which the gateway has no credential of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from evenmesh.wire.certificates import CertificateError, Certificates
from evenmesh.wire.channel import connect
from evenmesh.wire.security import SYSTEM, ChannelSecurity
from evenmesh_gateway.methods import PublicMethod, public_methods
from evenmesh_kit.rpc.server import ServerStartError

if TYPE_CHECKING:
    from evenmesh_gateway.settings import GatewaySettings
    from evenmesh_kit.telemetry.setup import Telemetry


class Upstreams:
    """The methods of the services, which take and give messages in bytes. Create it in a running event loop.

    A message passes unread: the service that answers checks its size and its bounds before it decodes it.

    Args:
        settings: where the services are, and the certificates.
        telemetry: records the calls.

    Raises:
        ServerStartError: a file of the certificates cannot be used.
    """

    def __init__(self, settings: GatewaySettings, telemetry: Telemetry) -> None:
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

    def call(self, method: PublicMethod) -> Any:
        """Return what calls a method, of the kind of ``grpc.aio``; requests and replies are bytes."""
        return self._calls[method.path]

    async def close(self) -> None:
        """Close the channels; calls in progress fail."""
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


def _certificates(settings: GatewaySettings) -> Certificates | None:
    if settings.tls_ca is None:
        return None
    authorities = None if str(settings.tls_ca) == SYSTEM else settings.tls_ca
    try:
        return Certificates(settings.tls_cert, settings.tls_key, authorities)
    except CertificateError as error:
        raise ServerStartError(f"EVENMESH_TLS_CA, _CERT, _KEY: {error}") from None
