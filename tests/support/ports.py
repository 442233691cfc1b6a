"""Ports of this machine that a server is given before it listens."""

from __future__ import annotations

import socket
import weakref


def reserve(owner: object) -> int:
    """Return a free port that nobody else is given for as long as the owner lives.

    It is bound, and never listened on. Whoever allows addresses to be used again, as servers do, can listen on
    it beside that, also again after an end.
    """
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", 0))
    weakref.finalize(owner, bound.close)
    return int(bound.getsockname()[1])
