"""Guard a servicer: deadlines, and statuses for what it raises."""

from __future__ import annotations

import asyncio
import math
from typing import Any, Final, cast

import grpc

from evenmesh.wire import deadline
from evenmesh.wire.errors import MeshError, Unavailable, Unimplemented
from evenmesh_kit.rpc.handlers import (
    Behaviour,
    Context,
    Handler,
    HandlerInterceptor,
    cancellation_requested,
)
from evenmesh_kit.rpc.requests import reading
from evenmesh_kit.rpc.statuses import abort

MESSAGE_LIMIT_KEY: Final = "evenmesh-max-message-bytes"
"""Trailing metadata of every reply: the largest message that the service accepts. Bytes."""

_REFUSED_PAUSE_S: Final = 0.2
_REFUSED_AT_A_TIME: Final = 32


class StrayCancellationError(RuntimeError):
    """Raised when a servicer ends with a ``CancelledError`` although its call was not cancelled."""


class Guard(HandlerInterceptor):
    """Server interceptor that gives every call a deadline and turns exceptions into statuses.

    - :func:`evenmesh.wire.deadline.current` is the caller's deadline. Without one it is
      ``default_deadline_s`` from now, and the guard itself ends the call then. Calls also have a longest
      life, whatever their deadline, at whose end they get DEADLINE_EXCEEDED: ``STREAM_TOO_LONG`` for streams
      and ``CALL_TOO_LONG`` for the others.
    - Exceptions become statuses (:mod:`evenmesh_kit.rpc.statuses`). A cancelled call stays cancelled. A
      ``CancelledError`` without a cancellation, on which gRPC would let the caller wait, is an error like any
      other.
    - Calls get UNAVAILABLE before :meth:`open` and after :meth:`close`; :meth:`end` ends running ones so.

    Args:
        default_deadline_s: deadline of calls without one. Seconds, (0, inf).
        max_message_bytes: largest request of the server, sent in the trailing metadata of every reply. Bytes.
        max_call_s: longest life of a call with one request and one reply. Seconds, (0, inf].
        max_stream_s: longest life of a stream. Seconds, (0, inf].
    """

    def __init__(
        self,
        default_deadline_s: float,
        *,
        max_message_bytes: int,
        max_call_s: float = math.inf,
        max_stream_s: float = math.inf,
    ) -> None:
        super().__init__()
        self._max_call_s = max_call_s
        self._max_stream_s = max_stream_s
        self._dismissals = asyncio.Semaphore(_REFUSED_AT_A_TIME)
        self._trailers = ((MESSAGE_LIMIT_KEY, str(max_message_bytes)),)
        self._default_deadline_s = default_deadline_s
        self._refusal: tuple[str, str] | None = ("STARTING", "the service is still starting")
        self._running: set[asyncio.Task[Any]] = set()
        self._ended: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        """Return the number of running calls."""
        return len(self._running)

    def open(self) -> None:
        """Accept calls."""
        self._refusal = None

    def close(self) -> None:
        """Reject new calls; running ones continue."""
        self._refusal = ("SHUTTING_DOWN", "the service is shutting down")

    def end(self) -> None:
        """End the running calls with UNAVAILABLE."""
        self._ended |= self._running
        for task in self._running:
            task.cancel()

    async def idle(self) -> None:
        """Wait until no call runs."""
        await self._idle.wait()

    def around(self, method: str, handler: Handler, behaviour: Behaviour) -> Behaviour:
        if handler.request_streaming:
            behaviour = self._dismissing(behaviour)
        if handler.request_streaming or handler.response_streaming:
            limited = _limited(behaviour, self._max_stream_s, "STREAM_TOO_LONG", "streams live")
        else:
            limited = _limited(behaviour, self._max_call_s, "CALL_TOO_LONG", "calls last")
        return self._guarded(method, limited)

    def _dismissing(self, behaviour: Behaviour) -> Behaviour:
        """Return the behaviour, with a pause before the status of a refused stream, of which nothing is read.

        Meanwhile a caller ends its writes, if they fit the flow-control window. Otherwise it may see INTERNAL
        instead of the status (:func:`evenmesh_kit.rpc.requests.discard_requests`). The caller may be anybody
        and holds its window during the pause, so few such streams wait at a time.
        """

        async def dismissing(requests: Any, context: Context) -> Any:
            try:
                return await behaviour(requests, context)
            except MeshError:
                if not reading() and not self._dismissals.locked():
                    async with self._dismissals:
                        await asyncio.sleep(_REFUSED_PAUSE_S)
                raise

        return dismissing

    def _guarded(self, method: str, behaviour: Behaviour) -> Behaviour:
        async def guarded(request: Any, context: Context) -> Any:
            task = self._enter()
            context.set_trailing_metadata(self._trailers)
            try:
                if self._refusal is not None:
                    raise Unavailable(*self._refusal)
                # None without a deadline, unlike its type.
                left = cast(float | None, context.time_remaining())
                if left is not None:
                    # gRPC itself cancels the call at the caller's deadline.
                    deadline.enter(deadline.Deadline.after(left))
                    return await behaviour(request, context)
                deadline.enter(deadline.Deadline.after(self._default_deadline_s))
                async with asyncio.timeout(self._default_deadline_s):
                    return await behaviour(request, context)
            except grpc.aio.AbortError:
                raise
            except asyncio.CancelledError as error:
                if task in self._ended and not context.cancelled():
                    task.uncancel()
                    await abort(
                        context, Unavailable("CUT_SHORT", "the service stopped before the call ended")
                    )
                if cancellation_requested():
                    raise
                await abort(context, StrayCancellationError().with_traceback(error.__traceback__))
            except NotImplementedError as error:
                if context.code() == grpc.StatusCode.UNIMPLEMENTED:  # the stub's default method
                    await abort(context, Unimplemented(f"{method} is not in this version of evenmesh yet"))
                await abort(context, error)
            except Exception as error:  # noqa: BLE001 - the table maps and logs every one
                await abort(context, error)
            finally:
                self._leave(task)

        return guarded

    def _enter(self) -> asyncio.Task[Any]:
        task = cast("asyncio.Task[Any]", asyncio.current_task())  # gRPC runs every call in its own task
        self._running.add(task)
        self._idle.clear()
        return task

    def _leave(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        self._ended.discard(task)
        if not self._running:
            self._idle.set()


def _limited(behaviour: Behaviour, longest_s: float, reason: str, what: str) -> Behaviour:
    """Return the behaviour, ended with DEADLINE_EXCEEDED when its longest life is over."""

    async def limited(request: Any, context: Context) -> Any:
        if deadline.current().remaining() <= longest_s:
            return await behaviour(request, context)
        deadline.enter(deadline.Deadline.after(longest_s))
        try:
            async with asyncio.timeout(longest_s) as life:
                return await behaviour(request, context)
        except TimeoutError:
            if not life.expired():
                raise
            raise MeshError(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                reason,
                f"{what} at most {longest_s:g} s here, whatever their deadline",
            ) from None

    return limited
