"""The messages of one stream: turns, which wait for each other, and cancellations, which do not wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final, TypeVar

import grpc

from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.errors import MeshError

E = TypeVar("E")

MAX_WAITING: Final = 16
"""Most turns of a stream that may wait for the running one."""


class Inbox:
    """The messages of a stream. For one event loop.

    A turn that waits is kept serialized: read, it can take forty times the memory.

    Args:
        hold: counts the bytes of a turn that waits, and, negative, of one that no longer does; raises
            MeshError where they do not fit.
    """

    def __init__(self, hold: Callable[[int], None] = lambda _: None) -> None:
        self._hold = hold
        self._waiting: asyncio.Queue[bytes | MeshError | None] = asyncio.Queue()
        self._cancel = asyncio.Event()
        self._running = False
        self._cancel_next = False

    async def fill(self, messages: AsyncIterator[pb.ConverseRequest]) -> None:
        """Read messages until the client ends the stream, or sends too many at once."""
        try:
            async for message in messages:
                if message.cancel:
                    # A cancellation never applies to a turn that was sent after it.
                    if self._running:
                        self._cancel.set()
                    elif self._waiting.qsize():
                        self._cancel_next = True
                elif self._waiting.qsize() >= MAX_WAITING:
                    self._waiting.put_nowait(
                        MeshError(
                            grpc.StatusCode.RESOURCE_EXHAUSTED,
                            "TOO_MANY_TURNS",
                            f"more than {MAX_WAITING} turns wait for the running one; send the next turn "
                            "after `done`",
                        )
                    )
                    return
                else:
                    self._hold(message.ByteSize())
                    self._waiting.put_nowait(message.SerializeToString())
        except MeshError as error:
            self._waiting.put_nowait(error)
        finally:
            self._waiting.put_nowait(None)

    async def next(self, *, within_s: float | None = None) -> pb.ConverseRequest | None:
        """Return the next turn; None at the end of the stream, or after ``within_s`` seconds without one.

        Raises:
            MeshError: the client sent too many at once.
        """
        self._running = False
        try:
            async with asyncio.timeout(within_s):
                found = await self._waiting.get()
        except TimeoutError:
            return None
        if isinstance(found, MeshError):
            raise found
        if found is not None:
            self._hold(-len(found))
        self._running = True
        # An earlier cancellation applied to a turn that is over.
        self._cancel.clear()
        if self._cancel_next:
            self._cancel_next = False
            self._cancel.set()
        return None if found is None else pb.ConverseRequest.FromString(found)

    def drop(self) -> None:
        """Give back what the turns that still wait hold, at the end of the stream."""
        while not self._waiting.empty():
            if isinstance(found := self._waiting.get_nowait(), bytes):
                self._hold(-len(found))

    async def until_cancelled(self, events: AsyncGenerator[E, None]) -> AsyncGenerator[E, None]:
        """Yield events until the client cancels the turn.

        Raises:
            MeshError: CANCELLED, once the client cancels.
        """
        stop = asyncio.create_task(self._cancel.wait())
        upcoming: asyncio.Task[E] | None = None
        try:
            while True:
                upcoming = asyncio.ensure_future(anext(events))
                await asyncio.wait((upcoming, stop), return_when=asyncio.FIRST_COMPLETED)
                if not upcoming.done():
                    raise MeshError(
                        grpc.StatusCode.CANCELLED, "TURN_CANCELLED", "the turn was cancelled by its client"
                    )
                try:
                    event = upcoming.result()
                except StopAsyncIteration:
                    return
                yield event
        finally:
            for task in (stop, upcoming):
                if task is not None:
                    task.cancel()
            await asyncio.gather(stop, *([upcoming] if upcoming else []), return_exceptions=True)
