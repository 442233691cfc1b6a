"""Readiness: whether a started service can answer now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator


class Readiness:
    """The readiness that a service sets and its health reports. For one event loop.

    A service that is not ready still accepts calls; those that it cannot answer fail with the reason.
    """

    def __init__(self) -> None:
        self._ready = True
        self._changed = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Return whether it can answer."""
        return self._ready

    @ready.setter
    def ready(self, value: bool) -> None:
        if value != self._ready:
            self._ready = value
            self._changed.set()

    async def changes(self) -> AsyncGenerator[bool, None]:
        """Yield the current value, then every new one; values replaced before they were seen are skipped."""
        seen: bool | None = None
        while True:
            self._changed.clear()
            if self._ready != seen:
                seen = self._ready
                yield seen
            else:
                await self._changed.wait()
