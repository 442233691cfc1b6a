"""What stands between the wire and a servicer: decoding, the deadline, and the error table."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from typing import Any, Final, cast

import grpc
from google.protobuf.message import DecodeError

from meshkit import deadline
from meshkit.errors import MeshError, Unavailable, Unimplemented, abort
from meshkit.handlers import Behaviour, Context, Handler, HandlerInterceptor, behaviour_of, with_behaviour

MESSAGE_LIMIT_KEY: Final = "ragmesh-max-message-bytes"
"""Trailing metadata of every reply: the largest message the service takes, in bytes."""

_DISCARD_S: Final = 5.0
_PAUSE_S: Final = 0.2


class _Malformed:
    """Stands for a unary request that could not be decoded, until there is a call to refuse."""

    __slots__ = ("error",)

    def __init__(self, error: MeshError) -> None:
        self.error = error


class StrayCancellationError(RuntimeError):
    """A servicer ended with a ``CancelledError`` although no one cancelled its call."""


class Guard(HandlerInterceptor):
    """Server interceptor that gives every call a deadline and turns whatever it raises into a status.

    - A request that is no valid message is INVALID_ARGUMENT with reason ``MALFORMED_REQUEST``; gRPC alone
      would answer UNKNOWN.
    - :func:`meshkit.deadline.current` is the caller's deadline, or ``default_deadline_s`` from now if it set
      none, in which case the guard itself ends the call when that time is over. Streams have a longest life
      besides, and are ended with DEADLINE_EXCEEDED, ``STREAM_TOO_LONG``.
    - Exceptions go through :mod:`meshkit.errors`. A cancelled call stays cancelled; a ``CancelledError`` that
      no one asked for, on which gRPC would leave the caller waiting, is an error like any other.
    - Calls are refused with UNAVAILABLE until :meth:`open` and after :meth:`close`, and end with it at
      :meth:`end`.

    Args:
        default_deadline_s: seconds for a call without deadline, (0, inf).
        max_message_bytes: the server's message limit, told in the trailing metadata of every reply.
        max_stream_s: longest life of a stream. Seconds, (0, inf].
    """

    def __init__(
        self, default_deadline_s: float, *, max_message_bytes: int, max_stream_s: float = math.inf
    ) -> None:
        super().__init__()
        self._max_stream_s = max_stream_s
        self._trailers = ((MESSAGE_LIMIT_KEY, str(max_message_bytes)),)
        self._default_deadline_s = default_deadline_s
        self._refusal: tuple[str, str] | None = ("STARTING", "the service is still starting")
        self._running: set[asyncio.Task[Any]] = set()
        self._ended: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        """Calls running now."""
        return len(self._running)

    def open(self) -> None:
        """Lets calls in."""
        self._refusal = None

    def close(self) -> None:
        """Lets no more calls in; those running are left alone."""
        self._refusal = ("SHUTTING_DOWN", "the service is shutting down")

    def end(self) -> None:
        """Ends the calls running now with UNAVAILABLE."""
        self._ended |= self._running
        for task in self._running:
            task.cancel()

    async def idle(self) -> None:
        """Waits until no call runs."""
        await self._idle.wait()

    def wrap(self, method: str, handler: Handler) -> Handler:
        behaviour = behaviour_of(handler)
        if handler.request_streaming:
            behaviour = _reading_to_the_end(behaviour)
        if handler.request_streaming or handler.response_streaming:
            behaviour = self._ending(behaviour)
        return with_behaviour(handler, self._guarded(method, behaviour), _checked(handler))

    def _ending(self, behaviour: Behaviour) -> Behaviour:
        """The behaviour of a stream, ended at the end of its longest life."""

        async def ending(request: Any, context: Context) -> Any:
            if deadline.current().remaining() <= self._max_stream_s:
                return await behaviour(request, context)
            deadline.enter(deadline.Deadline.after(self._max_stream_s))
            try:
                async with asyncio.timeout(self._max_stream_s) as life:
                    return await behaviour(request, context)
            except TimeoutError:
                if not life.expired():
                    raise
                raise MeshError(
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                    "STREAM_TOO_LONG",
                    f"streams live for {self._max_stream_s:g} s here: open another",
                ) from None

        return ending

    def _guarded(self, method: str, behaviour: Behaviour) -> Behaviour:
        async def guarded(request: Any, context: Context) -> Any:
            task = self._enter()
            context.set_trailing_metadata(self._trailers)
            try:
                if self._refusal is not None:
                    raise Unavailable(*self._refusal)
                if type(request) is _Malformed:
                    raise request.error
                # None without a deadline, whatever its type says.
                left = cast(float | None, context.time_remaining())
                if left is not None:
                    # gRPC itself cancels the call when the caller's deadline is over.
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
                    await abort(context, Unavailable("CUT_SHORT", "the service ended before it"))
                if _is_asked_for():
                    raise
                await abort(context, StrayCancellationError().with_traceback(error.__traceback__))
            except NotImplementedError as error:
                if context.code() == grpc.StatusCode.UNIMPLEMENTED:  # a stub's method that no one wrote
                    await abort(context, Unimplemented(f"{method} is not in this version of ragmesh yet"))
                await abort(context, error)
            except Exception as error:  # noqa: BLE001 - the table maps and logs every one
                await abort(context, error)
            finally:
                self._leave(task)

        return guarded

    def _enter(self) -> asyncio.Task[Any]:
        task = cast("asyncio.Task[Any]", asyncio.current_task())  # gRPC runs every call in one of its own
        self._running.add(task)
        self._idle.clear()
        return task

    def _leave(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        self._ended.discard(task)
        if not self._running:
            self._idle.set()


def _reading_to_the_end(behaviour: Behaviour) -> Behaviour:
    """The behaviour, with requests it left unread taken off the wire before its status is sent.

    A grpc.aio caller whose write meets a call that has ended reports INTERNAL, "Internal error from Core",
    instead of the status it was sent (seen with grpcio 1.85 in every second call).
    """

    async def reading(requests: Any, context: Context) -> Any:
        try:
            return await behaviour(requests, context)
        finally:
            if not _is_asked_for():
                await _discard_requests(context)

    return reading


async def _discard_requests(context: Context) -> None:
    """Reads requests until the caller has sent its last, pauses, or has gone on for long enough."""
    with contextlib.suppress(TimeoutError, grpc.aio.BaseError):
        async with asyncio.timeout(_DISCARD_S):
            while True:
                async with asyncio.timeout(_PAUSE_S):
                    try:
                        if await context.read() is grpc.aio.EOF:
                            return
                    except MeshError:  # one that could not be decoded
                        continue


def _is_asked_for() -> bool:
    """Whether someone cancelled the running task, as gRPC does when the caller has gone."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _checked(handler: Handler) -> Callable[[bytes], Any] | None:
    """The handler's deserializer, with undecodable bytes as the caller's error instead of ours."""
    decode = handler.request_deserializer
    if decode is None:
        return None
    streaming = handler.request_streaming
    descriptor = getattr(getattr(decode, "__self__", None), "DESCRIPTOR", None)
    name = descriptor.full_name if descriptor is not None else "request"

    def checked(data: bytes) -> Any:
        try:
            return decode(data)
        except (DecodeError, ValueError) as error:
            malformed = MeshError(
                grpc.StatusCode.INVALID_ARGUMENT,
                "MALFORMED_REQUEST",
                f"request is not a valid {name}: {error}",
            )
            if streaming:  # raised where the servicer reads its requests, and passes through it to the guard
                raise malformed from None
            return _Malformed(malformed)

    return checked
