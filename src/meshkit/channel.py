"""Channels to other services: spread over all addresses, kept alive, retried where that is safe."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

import grpc

from meshkit import keepalive, retries
from meshkit.decoding import DecodingChannel
from meshkit.security.certificates import channel_credentials
from meshkit.security.channel_security import ChannelSecurity
from meshkit.security.outgoing import ShownSync, interceptors
from meshkit.security.renewed_channel import RenewedChannel
from meshkit.telemetry import Telemetry

DEFAULT_MAX_MESSAGE_BYTES: Final = 32 * 2**20
"""Largest message sent or taken by default, as :class:`meshkit.settings.ServiceSettings` has it. Bytes."""

_SCHEME: Final = re.compile(r"(?:dns|ipv4|ipv6|unix|unix-abstract|vsock|xds|passthrough):")


def connect(
    target: str,
    *,
    service: str,
    idempotent: Sequence[str] = (),
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    telemetry: Telemetry | None = None,
    security: ChannelSecurity | None = None,
) -> grpc.aio.Channel:
    """Opens a channel; it connects when first used and must be closed by the caller.

    Args:
        target: gRPC target; without a scheme it gets ``dns:///``.
        service: full name of the service called, such as ``ragmesh.retriever.v1.RetrieverService``.
        idempotent: names of its methods that may be sent again: at most 5 attempts, on UNAVAILABLE only, and
            only while no answer has begun, and within a budget.
        max_message_bytes: largest message either way. Bytes.
        telemetry: adds spans, metrics and trace context to every call; tells of certificates and tokens.
        security: TLS and credential; what the environment says by default.

    Raises:
        ChannelSecurityError: the environment names files that cannot be used.
        ValueError: a method must not be sent again, see :mod:`meshkit.retries`.
    """
    security = ChannelSecurity.find() if security is None else security
    address, options = with_scheme(target), _options(service, idempotent, max_message_bytes)
    traced = telemetry.client_interceptors() if telemetry is not None else ()
    added = [*traced, *interceptors(security.credential)] or None
    certificates, tokens = security.certificates, security.credential.tokens
    if telemetry is not None and tokens is not None:
        telemetry.freshness.watch("token", tokens)
    if telemetry is not None and certificates is not None:
        telemetry.freshness.certificates("client", certificates)
    if certificates is None:
        return DecodingChannel(grpc.aio.insecure_channel(address, options=options, interceptors=added))
    return DecodingChannel(
        RenewedChannel(
            certificates,
            lambda material: grpc.aio.secure_channel(
                address, channel_credentials(material), options=options, interceptors=added
            ),
        )
    )


def connect_sync(
    target: str,
    *,
    service: str,
    idempotent: Sequence[str] = (),
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    telemetry: Telemetry | None = None,
    security: ChannelSecurity | None = None,
) -> grpc.Channel:
    """The same for callers without an event loop; certificates are those of when it is made."""
    security = ChannelSecurity.find() if security is None else security
    address, options = with_scheme(target), _options(service, idempotent, max_message_bytes)
    if security.certificates is None:
        channel = grpc.insecure_channel(address, options=options)
    else:
        material = security.certificates.material
        channel = grpc.secure_channel(address, channel_credentials(material), options=options)
    traced = telemetry.sync_client_interceptors() if telemetry is not None else ()
    shown = (ShownSync(security.credential),) if security.credential.given else ()
    added = [*traced, *shown]
    return grpc.intercept_channel(channel, *added) if added else channel


def with_scheme(target: str) -> str:
    """The target with its resolver named: ``127.0.0.1:7071`` becomes ``dns:///127.0.0.1:7071``."""
    return target if _SCHEME.match(target) else f"dns:///{target}"


def service_config(service: str, idempotent: Sequence[str]) -> str:
    """The gRPC service config (JSON) of :func:`connect`.

    Retries have a budget, gRPC's own (gRFC A6, "throttling"): of 100 tokens an attempt that fails takes one,
    a call that succeeds brings back a tenth, and nothing is sent again while 50 or fewer are left. Fifty
    failed attempts in a row end all retries, and in the long run they are at most a tenth of the calls.

    Raises:
        ValueError: a method must not be sent again, see :mod:`meshkit.retries`.
    """
    retries.check(service, idempotent)
    config: dict[str, object] = {
        "loadBalancingConfig": [{"round_robin": {}}],
        "retryThrottling": {"maxTokens": 100, "tokenRatio": 0.1},
    }
    if idempotent:
        config["methodConfig"] = [
            {
                "name": [{"service": service, "method": method} for method in idempotent],
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


def _options(service: str, idempotent: Sequence[str], max_message_bytes: int) -> list[tuple[str, str | int]]:
    return [
        ("grpc.service_config", service_config(service, idempotent)),
        # Only our own service config counts, not one that DNS may carry.
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        *keepalive.CHANNEL,
        # A restarted service is found again within the time that the retries take together, instead of
        # gRPC's two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 500),
    ]
