"""Find dead connections by pings from both sides.

When a peer's machine disappears or a firewall drops a connection, no system call fails and a call waits for
its deadline. So callers ping a silent connection and close it when no answer comes: calls in flight fail
with UNAVAILABLE and the next call reconnects. gRPC's core answers pings without Python, so a service that
computes or waits for its interpreter still answers.
"""

from __future__ import annotations

from typing import Final

PING_S: Final = 4.0
"""Silence after which a caller pings a connection. Seconds."""

ANSWER_S: Final = 4.0
"""Longest wait for the answer; a dead connection is found within the sum of both. Seconds."""

_SERVER_PING_S: Final = 30.0

CHANNEL: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.keepalive_time_ms", int(1000 * PING_S)),
    ("grpc.keepalive_timeout_ms", int(1000 * ANSWER_S)),
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC also pings to measure bandwidth. Such a ping, unanswered, holds back those above, and by default it
    # closes the connection only after a minute.
    ("grpc.http2.ping_timeout_ms", int(1000 * ANSWER_S)),
)
"""Options of a channel, which pings only while a call runs: an idle connection costs nothing."""

SERVER: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.keepalive_time_ms", int(1000 * _SERVER_PING_S)),
    ("grpc.keepalive_timeout_ms", int(1000 * ANSWER_S)),
    ("grpc.http2.ping_timeout_ms", int(1000 * ANSWER_S)),
    ("grpc.keepalive_permit_without_calls", 1),
    # Allow the pings of our channels while a stream is silent.
    ("grpc.http2.min_ping_interval_without_data_ms", int(1000 * PING_S / 2)),
)
"""Options of a server, whose pings find callers that are gone and free their resources."""
