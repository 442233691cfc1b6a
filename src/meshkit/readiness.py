"""Whether a service that has started can answer now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator


class Readiness:
    """Told by a service's lifecycle, shown by its health. For one event loop.

    A service that is not ready still takes calls: what it cannot answer says why.
    """

    def __init__(self) -> None:
        self._ready = True
        self._changed = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether it can answer."""
        return self._ready

    @ready.setter
    def ready(self, value: bool) -> None:
        if value != self._ready:
            self._ready = value
            self._changed.set()

    async def changes(self) -> AsyncGenerator[bool, None]:
        """The value now, then every value it comes to have, less what was gone before it was seen."""
        shown: bool | None = None
        while True:
            self._changed.clear()
            if self._ready != shown:
                shown = self._ready
                yield shown
            else:
                await self._changed.wait()
