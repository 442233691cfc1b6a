"""A server for health alone, on a port that callers of the service do not have and so cannot fill."""

from __future__ import annotations

from typing import Final

import grpc
from grpc_health.v1 import health, health_pb2

from evenmesh_kit.settings import ServiceSettings

_CONNECTIONS: Final = 64
_CALLS: Final = 4
_HELD_S: Final = 5.0
"""Longest life of a connection: a probe opens one for each question. Seconds."""
_REQUEST_BYTES: Final = 1024


def health_server(servicer: health.aio.HealthServicer, settings: ServiceSettings) -> grpc.aio.Server:
    """Return a server, not bound yet, that answers ``grpc.health.v1.Health/Check`` and nothing else.

    There is no ``Watch``, and connections end soon, so that nobody can hold all of them.

    Args:
        servicer: knows the health.
        settings: say whether the next process may share the port.
    """
    check = grpc.unary_unary_rpc_method_handler(
        servicer.Check,
        request_deserializer=health_pb2.HealthCheckRequest.FromString,
        response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
    )
    server = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", int(settings.share_port)),
            ("grpc.max_allowed_incoming_connections", _CONNECTIONS),
            ("grpc.max_concurrent_streams", _CALLS),
            ("grpc.server_handshake_timeout_ms", int(1000 * _HELD_S)),
            ("grpc.max_connection_age_ms", int(1000 * _HELD_S)),
            ("grpc.max_connection_age_grace_ms", int(1000 * _HELD_S)),
            ("grpc.max_receive_message_length", _REQUEST_BYTES),
        ]
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(health.SERVICE_NAME, {"Check": check}),)
    )
    return server
