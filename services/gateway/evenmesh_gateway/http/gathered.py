"""Writes of one turn of the event loop, sent by one call of the system."""

from __future__ import annotations

import asyncio
from typing import Any, Final

_MOST_BYTES: Final = 65_536
"""What is held at most; from there on the transport's own bounds say when to wait. Bytes."""


class GatheredWrites:
    """A transport whose writes go out together at the end of a turn of the loop.

    A response writes its head, its first event and its end each for itself, and each call of the system wakes
    the client: joined they cost one.

    Args:
        transport: what sends.
        loop: the loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        """Send bytes at the end of this turn, or now where much is held."""
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)
        self._size += len(data)
        if self._size >= _MOST_BYTES:
            self._flush()

    def close(self) -> None:
        """Send what is held, and close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._held:
            data = b"".join(self._held)
            self._held.clear()
            self._size = 0
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
