"""Write replies while their calls still count, and bound the memory of those that nobody has taken."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, cast

import grpc

from evenmesh.wire.errors import MeshError
from evenmesh_kit.admission.queue import Admission, Admitted
from evenmesh_kit.rpc.handlers import (
    RUNTIME,
    Context,
    Handler,
    HandlerInterceptor,
    Write,
    behaviour_of,
    with_behaviour,
)

TAKEN_S: float = 300.0
"""Longest wait for the caller of a stream to take a message: until then it holds what it reads from."""
_UNCOUNTED_BYTES: Final = 4096
_LEFT_S: Final = 1.0
_SOON_S: Final = 60.0


class ReplyWriter(HandlerInterceptor):
    """Server interceptor that writes the replies of a call before the call ends; the innermost one.

    gRPC writes the reply of a unary method after its code has returned, and keeps it for as long as the
    caller does not read it: no limit of calls or of memory would count it. So each reply is written like one
    of a stream, and its call counts until gRPC has sent it. A stream whose caller takes no message in time
    ends with DEADLINE_EXCEEDED, ``STREAM_IDLE``.

    A reply over 4 KiB takes a share of the process's and of the tenant's memory meanwhile. One that does not
    fit now waits, and is refused as the admission says. gRPC's own methods have no tenant, and small replies.

    A write cannot be taken back, and gRPC sends no status before its end. So where a limit of time ends a
    call in the middle of a write, the code of the call ends at once, and the rest stays and counts until the
    caller has read it or is gone.

    Args:
        memory: bounds the replies that are not sent yet. Bytes.
    """

    def __init__(self, memory: Admission) -> None:
        super().__init__()
        self._memory = memory
        self._unsent: set[asyncio.Future[None]] = set()

    def end(self) -> None:
        """Wait for no caller any more whose call has ended."""
        for writing in self._unsent:
            writing.cancel()

    def covers(self, method: str) -> bool:
        return True

    def wrap(self, method: str, handler: Handler) -> Handler:
        memory = None if method.startswith(RUNTIME) else self._memory
        given = handler.response_serializer

        def serialize(reply: Any) -> bytes:
            # What is written here, and by the watches of gRPC's health, which write themselves.
            return reply if isinstance(reply, bytes) or given is None else given(reply)

        if handler.response_streaming:
            writer = partial(self._stream, serialize, memory)
            return with_behaviour(handler, behaviour_of(handler, writer), serialize)
        code = behaviour_of(handler)

        async def answering(request: Any, context: Context) -> None:
            sending = _Sending(context, serialize, memory)
            try:
                await sending.write(await code(request, context), only=True)
            finally:
                await self._settle(sending)

        return with_behaviour(handler, answering, serialize)

    @asynccontextmanager
    async def _stream(
        self, serialize: Callable[[Any], bytes], memory: Admission | None, context: Context
    ) -> AsyncIterator[Write]:
        """Yield what writes the messages of a stream; end a stream whose caller takes none.

        One timer a stream looks after it: one a message would take as long as writing it.
        """
        loop = asyncio.get_running_loop()
        sending = _Sending(context, serialize, memory)
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal timer
            left = sending.since + TAKEN_S - loop.time()
            if left <= 0:
                taking.reschedule(loop.time())
            else:
                timer = loop.call_later(min(left, TAKEN_S), look)

        timer = loop.call_later(TAKEN_S, look)
        try:
            async with asyncio.timeout(None) as taking:
                yield sending.write
        except TimeoutError:
            if not taking.expired():
                raise
            raise MeshError(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                "STREAM_IDLE",
                f"no message of the stream was read for {TAKEN_S:g} s: call again, and read faster",
            ) from None
        finally:
            timer.cancel()
            await self._settle(sending)

    async def _settle(self, sending: _Sending) -> None:
        """Wait for the write in the middle of which a call was ended, whatever else would end it."""
        writing = sending.writing
        if writing is None:
            return
        self._unsent.add(writing)
        try:
            while not writing.done():
                try:
                    await asyncio.wait((writing,))
                except asyncio.CancelledError:  # of the next limit of time, or gRPC's: then the write fails
                    continue
        finally:
            self._unsent.discard(writing)
        if not writing.cancelled():
            writing.exception()  # the caller is gone; asyncio would log that nobody asked


class _Sending:
    """Writes the replies of one call, one after the other.

    Attributes:
        since: when the reply was given to gRPC that is not sent yet; infinity if all are. Seconds.
        writing: the write that began last.
    """

    __slots__ = ("_context", "_memory", "_serialize", "since", "writing")

    def __init__(self, context: Context, serialize: Callable[[Any], bytes], memory: Admission | None) -> None:
        self._context = context
        self._serialize = serialize
        self._memory = memory
        self.since = math.inf
        self.writing: asyncio.Future[None] | None = None

    async def write(self, reply: Any, *, only: bool = False) -> None:
        """Write a reply; return when gRPC has sent it. ``only``: it is the only one of its call."""
        data = self._serialize(reply)
        del reply
        if only and len(data) <= _UNCOUNTED_BYTES:
            left = cast(float | None, self._context.time_remaining())  # None without a deadline
            if left is not None and left <= _SOON_S:  # gRPC itself ends the call; a task would take longer
                await self._sent(self._context.write(data))
                return
        held: Admitted | None = None
        if self._memory is not None and len(data) > _UNCOUNTED_BYTES:
            held = self._memory.admit(len(data))
            await held.__aenter__()
        # In a task, as a write that is cancelled goes on in gRPC, where nobody would learn of its end.
        self.writing = writing = asyncio.ensure_future(self._context.write(data))
        del data
        if held is not None:
            writing.add_done_callback(held.__exit__)
        self.since = asyncio.get_running_loop().time()
        await self._sent(asyncio.shield(writing))
        self.since = math.inf

    async def _sent(self, writing: Awaitable[None]) -> None:
        try:
            await writing
        except grpc.aio.InternalError:
            await asyncio.sleep(_LEFT_S)  # the caller has left, for which gRPC cancels the call in a moment
            raise
