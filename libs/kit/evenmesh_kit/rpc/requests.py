"""Read and decode requests only after the call was admitted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final, cast

import grpc
from google.protobuf.message import DecodeError

from evenmesh.wire.errors import DeadlineExceeded, MeshError
from evenmesh.wire.methods import facts_of
from evenmesh_kit.rpc.handlers import (
    RUNTIME,
    Behaviour,
    Context,
    Handler,
    HandlerInterceptor,
    behaviour_of,
    cancellation_requested,
)
from evenmesh_kit.rpc.statuses import abort
from evenmesh_kit.rpc.wire_scan import malformed, scanner_of
from evenmesh_kit.security import caller as callers

_INLINE_BYTES: Final = 64 * 1024
_RUNTIME_BYTES: Final = 64 * 1024
_DISCARD_S: Final = 5.0
_PAUSE_S: Final = 0.2
_TENANT_READS: Final = 8

_reading: ContextVar[bool] = ContextVar("evenmesh_reading", default=False)


def reading() -> bool:
    """Return whether the running call was admitted, so that its requests are being read."""
    return _reading.get()


class UnreadRequests(HandlerInterceptor):
    """Server interceptor that hands the behaviour a call whose requests gRPC has not read; the outermost one.

    gRPC reads and decodes the request of a unary method before it runs the method. A method of many requests
    runs at once, and nothing but a flow-control window is buffered until it reads. On the wire both are the
    same, so every method is served as one of many requests, and :class:`RequestReader` reads.
    """

    def covers(self, method: str) -> bool:
        return True

    def wrap(self, method: str, handler: Handler) -> Handler:
        kind = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return kind(cast(Any, behaviour_of(handler)), response_serializer=handler.response_serializer)


class RequestReader(HandlerInterceptor):
    """Server interceptor that reads, checks and decodes the requests of admitted calls; the innermost one.

    A request may have at most the bytes that the contract states for its method (``max_request_bytes``). One
    over 64 KiB is decoded in a thread, after the bounds of its fields have been checked on its bytes
    (:mod:`evenmesh_kit.rpc.wire_scan`). Undecodable requests are INVALID_ARGUMENT with reason
    ``MALFORMED_REQUEST``; gRPC alone answers UNKNOWN.

    gRPC holds a whole message in memory before its size is known. So a tenant may have eight first requests
    on their way at a time; others wait. gRPC's own methods (health, reflection) need no credential: of each
    connection one request is read at a time, and it must come soon.

    Args:
        max_message_bytes: largest message of methods whose contract states no size. Bytes.
        first_request_s: longest wait for the first request of a call. Seconds, (0, inf).
        runtime_idle_s: longest wait for any request of gRPC's own methods. Seconds, (0, inf).
    """

    def __init__(
        self, max_message_bytes: int, *, first_request_s: float = 30.0, runtime_idle_s: float = 5.0
    ) -> None:
        super().__init__()
        self._max_message_bytes = max_message_bytes
        self._first_request_s = first_request_s
        self._runtime_idle_s = runtime_idle_s
        self._tenants = _Turns(_TENANT_READS)
        self._connections = _Turns(1)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="decode")

    def covers(self, method: str) -> bool:
        return True

    def around(self, method: str, handler: Handler, behaviour: Behaviour) -> Behaviour:
        runtime = method.startswith(RUNTIME)
        read = self._runtime_request if runtime else self._request
        decode = _decoder(handler, self._largest(method), method)
        reading = (self._many if handler.request_streaming else self._one)(behaviour, read, decode)
        return _with_statuses(reading) if runtime else reading

    def _largest(self, method: str) -> int:
        if method.startswith(RUNTIME):
            return _RUNTIME_BYTES
        return min(facts_of(method).max_request_bytes or self._max_message_bytes, self._max_message_bytes)

    def _one(self, behaviour: Behaviour, read: _Read, decode: _Decode) -> Behaviour:
        async def one(_: Any, context: Context) -> Any:
            _reading.set(True)
            request = await read(context, decode, first=True)
            if request is grpc.aio.EOF:
                raise MeshError(
                    grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST", "the call ended without a request"
                )
            return await behaviour(request, context)

        return one

    def _many(self, behaviour: Behaviour, read: _Read, decode: _Decode) -> Behaviour:
        async def requests(context: Context) -> AsyncIterator[Any]:
            first = True
            while (request := await read(context, decode, first=first)) is not grpc.aio.EOF:
                yield request
                first = False

        async def many(_: Any, context: Context) -> Any:
            _reading.set(True)
            try:
                return await behaviour(requests(context), context)
            finally:
                if not cancellation_requested():
                    await discard_requests(context)

        return many

    async def _request(self, context: Context, decode: _Decode, *, first: bool) -> Any:
        if not first:  # streams wait for their callers as long as they live
            return await self._decoded(await context.read(), decode)
        async with self._tenants.of(callers.current().tenant):
            return await self._decoded(await _in_time(context, self._first_request_s), decode)

    async def _runtime_request(self, context: Context, decode: _Decode, *, first: bool) -> Any:
        del first
        async with self._connections.of(context.peer()):
            return await self._decoded(await _in_time(context, self._runtime_idle_s), decode)

    async def _decoded(self, data: Any, decode: _Decode) -> Any:
        if data is grpc.aio.EOF:
            return data
        if len(data) <= _INLINE_BYTES:
            return decode(data)
        return await asyncio.get_running_loop().run_in_executor(self._threads, decode, data)


_Decode = Callable[[bytes], Any]
_Read = Callable[..., Any]


class _Turns:
    """Lets a number of tasks of each key go on at a time; others of the key wait in order.

    Args:
        each: tasks of a key at a time, [1, inf).
    """

    def __init__(self, each: int) -> None:
        self._each = each
        self._known: dict[str, tuple[asyncio.Semaphore, list[None]]] = {}

    @asynccontextmanager
    async def of(self, key: str) -> AsyncIterator[None]:
        """Hold a turn of the key while the block runs."""
        turns, users = self._known.setdefault(key, (asyncio.Semaphore(self._each), []))
        users.append(None)
        try:
            async with turns:
                yield
        finally:
            users.pop()
            if not users:
                del self._known[key]


def _with_statuses(behaviour: Behaviour) -> Behaviour:
    """Return the behaviour of one of gRPC's own methods, whose errors the guard does not see."""

    async def answered(requests: Any, context: Context) -> Any:
        try:
            return await behaviour(requests, context)
        except MeshError as error:
            await abort(context, error)

    return answered


async def _in_time(context: Context, longest_s: float) -> Any:
    try:
        async with asyncio.timeout(longest_s):
            return await context.read()
    except TimeoutError:
        raise DeadlineExceeded(f"no request came within {longest_s:g} s") from None


def _decoder(handler: Handler, largest: int, method: str) -> _Decode:
    """Return the handler's deserializer, for which oversized and undecodable bytes are the caller's error."""
    decode = cast(_Decode, handler.request_deserializer or bytes)
    descriptor = getattr(getattr(decode, "__self__", None), "DESCRIPTOR", None)
    name = descriptor.full_name if descriptor is not None else "request"
    # The servicer of a stream says which item of the whole stream has a text that is too long.
    texts = not handler.request_streaming
    scan = scanner_of(descriptor, texts=texts).scan if descriptor is not None else None

    def checked(data: bytes) -> Any:
        if len(data) > largest:
            raise MeshError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "REQUEST_TOO_LARGE",
                f"the request has {len(data):,} bytes; {method} takes at most {largest:,}",
            )
        # A smaller one takes little memory, and its servicer answers item by item or goes on with a stream.
        if scan is not None and len(data) > _INLINE_BYTES:
            scan(data)
        try:
            return decode(data)
        except (DecodeError, ValueError) as error:
            raise malformed(name, str(error)) from None

    return checked


async def discard_requests(context: Context, *, for_s: float = _DISCARD_S, most: int | None = None) -> None:
    """Read requests until the caller has sent the last, pauses, or has sent for long enough.

    A grpc.aio caller that writes to an ended call reports INTERNAL, "Internal error from Core", instead of
    the status it was sent (seen with grpcio 1.85 in every second call).

    Args:
        context: the call, whose deserializer is none.
        for_s: longest time to read. Seconds, (0, inf).
        most: size of a request after which no other is read; None for any. Bytes.
    """
    with suppress(TimeoutError, grpc.aio.BaseError):
        async with asyncio.timeout(for_s):
            while True:
                async with asyncio.timeout(_PAUSE_S):
                    data: Any = await context.read()
                if data is grpc.aio.EOF or (most is not None and len(data) > most):
                    return
