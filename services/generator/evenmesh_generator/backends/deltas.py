"""Pass text from a model's thread to its reader on the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from evenmesh_generator.backends.tasks import ended

T = TypeVar("T")


class DeltaQueue:
    """Passes text from a thread to the event loop; pieces that wait together leave together.

    Args:
        loop: the reader's loop.
        interval_s: least time between two pieces, except before the first and the last. Seconds, [0, inf).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, interval_s: float) -> None:
        self._loop = loop
        self._interval_s = interval_s
        self._pieces: deque[str] = deque()
        self._arrived = asyncio.Event()
        self._signalled = False
        self._closed = asyncio.Event()

    def put(self, text: str) -> None:
        """Add text; from any thread."""
        self._pieces.append(text)
        # One wake-up per read, however many pieces: waking the loop costs more than a small piece.
        if not self._signalled:
            self._signalled = True
            self._loop.call_soon_threadsafe(self._arrived.set)

    def close(self) -> None:
        """Mark the end of the text; called on the loop."""
        self._closed.set()
        self._arrived.set()

    async def read(self) -> AsyncGenerator[str, None]:
        """Return the text that has come since, until closed."""
        while not (self._closed.is_set() and not self._pieces):
            await self._arrived.wait()
            self._arrived.clear()
            self._signalled = False  # before taking: text that comes from now on wakes the loop again
            text = "".join(self._pieces.popleft() for _ in range(len(self._pieces)))
            if text:
                yield text
            if self._interval_s and not self._closed.is_set():
                try:
                    async with asyncio.timeout(self._interval_s):
                        await self._closed.wait()
                except TimeoutError:
                    continue


async def streamed(
    write: Callable[[Callable[[str], None]], Coroutine[Any, Any, T]], interval_s: float
) -> AsyncGenerator[str | T, None]:
    """Yield the text that ``write`` hands over piece by piece, then what it returns; closing cancels it."""
    queue = DeltaQueue(asyncio.get_running_loop(), interval_s)
    writing = asyncio.create_task(write(queue.put))
    writing.add_done_callback(lambda _: queue.close())
    try:
        async for text in queue.read():
            yield text
        yield await writing
    finally:
        await ended(writing)
