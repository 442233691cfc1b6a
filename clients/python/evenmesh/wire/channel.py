"""Channels to services: spread over all addresses, kept alive, retried where that is safe."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Sequence
from typing import Final, Protocol

import grpc

from evenmesh.wire import keepalive
from evenmesh.wire.certificates import Certificates, Material, channel_credentials
from evenmesh.wire.credentials import CredentialInterceptor, TokenFile, async_interceptors
from evenmesh.wire.mesh_channel import MeshChannel
from evenmesh.wire.methods import retryable_methods
from evenmesh.wire.security import ChannelSecurity

DEFAULT_MAX_MESSAGE_BYTES: Final = 32 * 2**20
"""Largest message either way by default, the default of services too. Bytes."""

_SCHEME: Final = re.compile(r"(?:dns|ipv4|ipv6|unix|unix-abstract|vsock|xds|passthrough):")


class ChannelTelemetry(Protocol):
    """Records what a channel does; services of the mesh have one."""

    def client_interceptors(self) -> Sequence[grpc.aio.ClientInterceptor]:
        """Return the interceptors of asyncio channels."""
        ...

    def sync_client_interceptors(self) -> Sequence[grpc.UnaryUnaryClientInterceptor]:
        """Return the interceptors of channels without an event loop."""
        ...

    def watch_channel(self, tokens: TokenFile | None, certificates: Certificates | None) -> None:
        """Report when the channel's token or certificates can no longer be used."""
        ...


def connect(
    target: str,
    *,
    service: str,
    retry: bool = True,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    telemetry: ChannelTelemetry | None = None,
    security: ChannelSecurity | None = None,
) -> grpc.aio.Channel:
    """Open a channel, which connects on first use and which the caller must close.

    Args:
        target: gRPC target; without a scheme it gets ``dns:///``. gRPC connects through the proxy of
            ``grpc_proxy``, ``https_proxy`` or ``http_proxy`` unless ``no_proxy`` names the host, or all hosts
            are this machine's.
        service: full name of the service called, such as ``evenmesh.retriever.v1.RetrieverService``.
        retry: whether to send calls again, of the methods that the protos mark retryable: at most 5 attempts,
            on UNAVAILABLE only, while no response has begun, and within a budget.
        max_message_bytes: largest message either way. Bytes.
        telemetry: adds spans, metrics and trace context to every call; reports on certificates and tokens.
        security: TLS and credential; from the environment by default.

    Raises:
        ChannelSecurityError: the environment names files that cannot be used.
    """
    security = ChannelSecurity.find() if security is None else security
    address = with_scheme(target)
    options = _options(address, service, retry, max_message_bytes)
    traced = telemetry.client_interceptors() if telemetry is not None else ()
    added = [*traced, *async_interceptors(security.credential)]
    if telemetry is not None:
        telemetry.watch_channel(security.credential.tokens, security.certificates)

    def open_channel(material: Material | None) -> grpc.aio.Channel:
        if material is None:
            return grpc.aio.insecure_channel(address, options=options, interceptors=added)
        credentials = channel_credentials(material)
        return grpc.aio.secure_channel(address, credentials, options=options, interceptors=added)

    return MeshChannel(open_channel, security.certificates)


def connect_sync(
    target: str,
    *,
    service: str,
    retry: bool = True,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    telemetry: ChannelTelemetry | None = None,
    security: ChannelSecurity | None = None,
) -> grpc.Channel:
    """Open a channel for callers without an event loop, as :func:`connect`; its certificates never change."""
    security = ChannelSecurity.find() if security is None else security
    address = with_scheme(target)
    options = _options(address, service, retry, max_message_bytes)
    if security.certificates is None:
        channel = grpc.insecure_channel(address, options=options)
    else:
        material = security.certificates.material
        channel = grpc.secure_channel(address, channel_credentials(material), options=options)
    traced = telemetry.sync_client_interceptors() if telemetry is not None else ()
    presented = (CredentialInterceptor(security.credential),) if security.credential.given else ()
    added = [*traced, *presented]
    return grpc.intercept_channel(channel, *added) if added else channel


def with_scheme(target: str) -> str:
    """Return the target with its resolver: ``127.0.0.1:7071`` becomes ``dns:///127.0.0.1:7071``."""
    return target if _SCHEME.match(target) else f"dns:///{target}"


def service_config(service: str, retry: bool) -> str:
    """Return the gRPC service config (JSON) of :func:`connect`.

    Retries have gRPC's own budget (gRFC A6, "throttling"). Each failed attempt takes one of 100 tokens, each
    success returns a tenth, and nothing is sent again at 50 tokens or fewer. So fifty failed attempts in a
    row end all retries, and in the long run retries are at most a tenth of the calls.
    """
    config: dict[str, object] = {
        "loadBalancingConfig": [{"round_robin": {}}],
        "retryThrottling": {"maxTokens": 100, "tokenRatio": 0.1},
    }
    if retry and (methods := retryable_methods(service)):
        config["methodConfig"] = [
            {
                "name": [{"service": service, "method": method} for method in methods],
                "waitForReady": False,
                "retryPolicy": {
                    "maxAttempts": 5,
                    "initialBackoff": "0.05s",
                    "maxBackoff": "0.5s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    return json.dumps(config)


def _only_here(address: str) -> bool:
    """Return whether all hosts of an address are this machine's own, which no proxy can reach."""
    hosts = (re.sub(r":\d+$", "", one) for one in _SCHEME.sub("", address).rpartition("/")[2].split(","))
    return all(_is_loopback(host.strip("[]")) for host in hosts)


def _is_loopback(host: str) -> bool:
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _options(address: str, service: str, retry: bool, max_message_bytes: int) -> list[tuple[str, str | int]]:
    return [
        ("grpc.service_config", service_config(service, retry)),
        # Ignore a service config that DNS may carry.
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        *keepalive.CHANNEL,
        # Find a restarted service while retries still run, instead of after gRPC's two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 500),
        *((("grpc.enable_http_proxy", 0),) if _only_here(address) else ()),
    ]
