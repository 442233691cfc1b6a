"""Connections that are dead without a word are found: pings from both ends, answered or the end.

A peer whose machine is gone, or a firewall that forgot a connection, sends nothing at all: no system call
fails, and a call waits for its deadline. So callers ping a connection that says nothing, and end it when no
answer comes; what was in flight fails as UNAVAILABLE and the next call connects anew. gRPC's core answers
pings without Python: a service that computes, or waits for its interpreter, still answers.
"""

from __future__ import annotations

from typing import Final

PING_S: Final = 4.0
"""How long a connection may say nothing before a caller pings it. Seconds."""

ANSWER_S: Final = 4.0
"""How long the answer may take; a dead connection is found in the sum of both. Seconds."""

_SERVER_PING_S: Final = 30.0

CHANNEL: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.keepalive_time_ms", int(1000 * PING_S)),
    ("grpc.keepalive_timeout_ms", int(1000 * ANSWER_S)),
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC pings of its own accord too, to measure bandwidth, and one that is not answered keeps those above
    # from being sent: it ends the connection after a minute by default.
    ("grpc.http2.ping_timeout_ms", int(1000 * ANSWER_S)),
)
"""Options of a channel. It pings only while a call runs: a quiet connection costs nothing."""

SERVER: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.keepalive_time_ms", int(1000 * _SERVER_PING_S)),
    ("grpc.keepalive_timeout_ms", int(1000 * ANSWER_S)),
    ("grpc.http2.ping_timeout_ms", int(1000 * ANSWER_S)),
    ("grpc.keepalive_permit_without_calls", 1),
    # Room for the pings of our channels, also while a stream says nothing.
    ("grpc.http2.min_ping_interval_without_data_ms", int(1000 * PING_S / 2)),
)
"""Options of a server, whose pings find callers that are gone and free what they hold."""
