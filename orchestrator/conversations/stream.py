"""What a client sends in one stream: turns that wait for each other, and cancellations that do not wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, TypeVar

import grpc

from meshkit.errors import MeshError
from ragmesh.orchestrator.v1 import orchestrator_service_pb2 as pb

E = TypeVar("E")

MOST_WAITING: Final = 16
"""Turns of a stream that may wait for the one under way."""


class Inbox:
    """The messages of a stream. For one event loop."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[pb.ConverseRequest | MeshError | None] = asyncio.Queue()
        self._cancel = asyncio.Event()
        self._running = False
        self._cancel_next = False

    async def fill(self, messages: AsyncIterator[pb.ConverseRequest]) -> None:
        """Reads messages until the client has no more, or sends too many at once."""
        try:
            async for message in messages:
                if message.cancel:
                    # Nobody can have meant a turn that had not been sent.
                    if self._running:
                        self._cancel.set()
                    elif self._waiting.qsize():
                        self._cancel_next = True
                elif self._waiting.qsize() >= MOST_WAITING:
                    self._waiting.put_nowait(
                        MeshError(
                            grpc.StatusCode.RESOURCE_EXHAUSTED,
                            "TOO_MANY_TURNS",
                            f"more than {MOST_WAITING} turns wait for the one under way",
                        )
                    )
                    return
                else:
                    self._waiting.put_nowait(message)
        finally:
            self._waiting.put_nowait(None)

    async def next(self, *, within_s: float | None = None) -> pb.ConverseRequest | None:
        """The next turn; None where there will be none, or was none for so many seconds.

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
        self._running = True
        # What was cancelled before is over already.
        self._cancel.clear()
        if self._cancel_next:
            self._cancel_next = False
            self._cancel.set()
        return found

    async def until_cancelled(self, events: AsyncGenerator[E, None]) -> AsyncGenerator[E, None]:
        """Hands events on until the client cancels the turn.

        Raises:
            MeshError: CANCELLED; it did.
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
