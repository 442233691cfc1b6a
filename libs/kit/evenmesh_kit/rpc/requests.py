"""Read and decode requests only after the call was admitted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, cast

import grpc
from google.protobuf.message import DecodeError

from evenmesh.wire import deadline
from evenmesh.wire.errors import DeadlineExceeded, MeshError, Overloaded
from evenmesh.wire.methods import facts_of
from evenmesh_kit.admission.queue import Admission, Admitted
from evenmesh_kit.compute.thread_names import name_thread
from evenmesh_kit.rpc.handlers import (
    RUNTIME,
    Behaviour,
    Context,
    Handler,
    HandlerInterceptor,
    behaviour_of,
    cancellation_requested,
)
from evenmesh_kit.rpc.runtime_streams import host_of
from evenmesh_kit.rpc.statuses import abort
from evenmesh_kit.rpc.wire_scan import malformed, scanner_of
from evenmesh_kit.security import caller as callers

_UNCOUNTED_BYTES: Final = 4096
_INLINE_BYTES: Final = 64 * 1024
_DECODED_FACTOR: Final = 16
_FIRST_REQUEST_S: Final = 30.0
"""Longest wait for the first request of a call. Seconds."""
_RUNTIME_S: Final = 3.0
"""Longest wait of any call of gRPC's own methods for its turn and its request. Seconds."""
_RUNTIME_BYTES: Final = 64 * 1024
_RUNTIME_READS: Final = 3
_RUNTIME_CALLS: Final = 64
_HOST_CALLS: Final = 8
_HURRIED_S: Final = 0.25
_DISCARD_S: Final = 5.0
_PAUSE_S: Final = 0.2
_TENANT_READS: Final = 8

_reading: ContextVar[bool] = ContextVar("evenmesh_reading", default=False)


def reading() -> bool:
    """Return whether the running call was admitted, so that its requests are being read."""
    return _reading.get()


class UnreadRequests(HandlerInterceptor):
    """Server interceptor that leaves reading and writing to the behaviour; the outermost one.

    gRPC reads and decodes the request of a unary method before it runs the method, and writes the reply after
    it. A method of many requests runs at once, and nothing but a flow-control window is buffered until it
    reads. On the wire both are the same, so every method is served as one of many requests and replies:
    :class:`RequestReader` reads, and :class:`evenmesh_kit.rpc.replies.ReplyWriter` writes.
    """

    def covers(self, method: str) -> bool:
        return True

    def wrap(self, method: str, handler: Handler) -> Handler:
        return grpc.stream_stream_rpc_method_handler(
            cast(Any, behaviour_of(handler)), response_serializer=handler.response_serializer
        )


class RequestReader(HandlerInterceptor):
    """Server interceptor that reads, checks and decodes the requests of admitted calls; the innermost one.

    A request may have at most the bytes that the contract states for its method (``max_request_bytes``). The
    bounds of its fields are checked on its bytes before it is decoded (:mod:`evenmesh_kit.rpc.wire_scan`),
    over 64 KiB in a thread. But a servicer whose items have errors of their own checks each item of requests
    up to 64 KiB, and that of a stream the lengths of texts, so that it can say which item of all is wrong.
    Undecodable requests are INVALID_ARGUMENT with reason ``MALFORMED_REQUEST``; gRPC alone answers UNKNOWN.

    A decoded request takes a share of the process's and the tenant's memory until its call ends, or until the
    next request of its stream is asked for: what the scan estimates, or 16 times its size up to 64 KiB. One
    that does not fit now waits, and is refused as the admission says; one that never fits is
    ``REQUEST_TOO_LARGE``. Requests up to 4 KiB are not counted.

    gRPC holds a whole message in memory before its size is known. So a tenant may have eight first requests
    on their way at a time; others wait. gRPC's own methods (health, reflection) need no credential: few of
    their requests are read at a time (:class:`_RuntimeReads`).

    Args:
        max_message_bytes: largest message of methods whose contract states no size. Bytes.
        memory: bounds the decoded requests of all calls. Bytes.
    """

    def __init__(self, max_message_bytes: int, memory: Admission) -> None:
        super().__init__()
        self._memory = memory
        self._max_message_bytes = max_message_bytes
        self._tenants = _Turns(_TENANT_READS)
        self._runtime = _RuntimeReads()
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="decode", initializer=name_thread)

    def covers(self, method: str) -> bool:
        return True

    def around(self, method: str, handler: Handler, behaviour: Behaviour) -> Behaviour:
        runtime = method.startswith(RUNTIME)
        read = self._runtime_request if runtime else self._request
        decoder = _decoder(handler, self._largest(method), method)
        reading = (self._many if handler.request_streaming else self._one)(behaviour, read, decoder)
        return _with_statuses(reading) if runtime else reading

    def _largest(self, method: str) -> int:
        if method.startswith(RUNTIME):
            return _RUNTIME_BYTES
        return min(facts_of(method).max_request_bytes or self._max_message_bytes, self._max_message_bytes)

    def _one(self, behaviour: Behaviour, read: _Read, decoder: _Decoder) -> Behaviour:
        async def one(_: Any, context: Context) -> Any:
            _reading.set(True)
            held = _Held()
            try:
                request = await read(context, decoder, held, first=True)
                if request is grpc.aio.EOF:
                    raise MeshError(
                        grpc.StatusCode.INVALID_ARGUMENT,
                        "MALFORMED_REQUEST",
                        "the call ended without a request",
                    )
                return await behaviour(request, context)
            finally:
                held.release()

        return one

    def _many(self, behaviour: Behaviour, read: _Read, decoder: _Decoder) -> Behaviour:
        async def requests(context: Context, held: _Held) -> AsyncIterator[Any]:
            first = True
            while (request := await read(context, decoder, held, first=first)) is not grpc.aio.EOF:
                yield request
                request, first = None, False
                held.release()

        async def many(_: Any, context: Context) -> Any:
            _reading.set(True)
            held = _Held()
            try:
                return await behaviour(requests(context, held), context)
            finally:
                held.release()
                if not cancellation_requested():
                    await discard_requests(context)

        return many

    async def _request(self, context: Context, decoder: _Decoder, held: _Held, *, first: bool) -> Any:
        if not first:  # streams wait for their callers as long as they live
            return await self._decoded(await context.read(), decoder, held)
        async with self._tenants.of(callers.current().tenant):
            # gRPC, or the guard, ends the call at its deadline; a timer of our own takes time.
            if deadline.current().remaining() <= _FIRST_REQUEST_S:
                data = await context.read()
            else:
                data = await _in_time(context, _FIRST_REQUEST_S)
            return await self._decoded(data, decoder, held)

    async def _runtime_request(self, context: Context, decoder: _Decoder, held: _Held, *, first: bool) -> Any:
        del held, first
        data = await self._runtime.read(context)
        return data if data is grpc.aio.EOF else decoder.decode(data)

    async def _decoded(self, data: Any, decoder: _Decoder, held: _Held) -> Any:
        if data is grpc.aio.EOF:
            return data
        size = len(data)
        if size > decoder.largest:
            raise _too_large(size, decoder.largest, decoder.method)
        if size <= _INLINE_BYTES:
            if not decoder.item_errors:  # a small one takes little memory: its servicer rejects items alone
                decoder.scan(data)
            if size > _UNCOUNTED_BYTES:
                await held.enter(self._memory.admit(_DECODED_FACTOR * size))
            return decoder.decode(data)
        run = asyncio.get_running_loop().run_in_executor
        takes = await run(self._threads, decoder.scan, data, self._memory.largest)
        await held.enter(self._memory.admit(takes))
        return await run(self._threads, decoder.decode, data)


@dataclass(frozen=True, slots=True)
class _Decoder:
    """Decodes the requests of a method.

    Attributes:
        method: full name.
        largest: largest request. Bytes.
        item_errors: whether items have errors of their own.
        scan: checks the bounds of a request; returns the bytes that it takes decoded, up to a most.
        decode: returns the message.
    """

    method: str
    largest: int
    item_errors: bool
    scan: Callable[..., int]
    decode: Callable[[bytes], Any]


_Read = Callable[..., Any]


class _Held:
    """What the decoded request of a call holds."""

    __slots__ = ("_admitted",)

    def __init__(self) -> None:
        self._admitted: Admitted | None = None

    async def enter(self, admitted: Admitted) -> None:
        """Hold what fits."""
        await admitted.__aenter__()
        self._admitted = admitted

    def release(self) -> None:
        """Hold nothing."""
        if self._admitted is not None:
            self._admitted.__exit__()
            self._admitted = None


class _Turns:
    """Lets a number of tasks of each key run at a time; others of the key wait in order.

    Args:
        each: tasks of a key at a time, [1, inf).
    """

    def __init__(self, each: int) -> None:
        self._each = each
        self._known: dict[str, _KeyTurns] = {}

    def of(self, key: str) -> _Turn:
        """Hold a turn of the key while a block under ``async with`` runs."""
        return _Turn(self._known, key, self._each)


class _KeyTurns:
    """The turns of one key, and the number of tasks that have or want one."""

    __slots__ = ("free", "users")

    def __init__(self, each: int) -> None:
        self.free = asyncio.Semaphore(each)
        self.users = 0


class _Turn:
    """Holds a turn while a block runs; a class, as every call needs one and a generator takes longer."""

    __slots__ = ("_each", "_key", "_known", "_turns")

    def __init__(self, known: dict[str, _KeyTurns], key: str, each: int) -> None:
        self._known = known
        self._key = key
        self._each = each

    async def __aenter__(self) -> None:
        turns = self._known.get(self._key)
        if turns is None:
            turns = self._known[self._key] = _KeyTurns(self._each)
        self._turns = turns
        turns.users += 1
        try:
            await turns.free.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *exc: object) -> None:
        self._turns.free.release()
        self._leave()

    def _leave(self) -> None:
        self._turns.users -= 1
        if not self._turns.users:
            del self._known[self._key]


class _RuntimeReads:
    """Reads the requests of gRPC's own methods, whose callers nobody knows.

    gRPC holds a message in memory before its size is known, and a flow-control window of a call that is not
    read. So a process reads three requests at a time, one of each host. At most eight calls of a host and 64
    of all wait or are read; others are refused. While calls wait, a request must come within a quarter of a
    second of its turn, so that silent callers keep nobody from health.
    """

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(_RUNTIME_READS)
        self._hosts = _Turns(1)
        self._calls: Counter[str] = Counter()
        self._waiting = 0
        self._reading: dict[asyncio.Timeout, float] = {}

    async def read(self, context: Context) -> Any:
        """Return the bytes of the next request of a call, or EOF.

        Raises:
            Overloaded: too many calls wait.
            DeadlineExceeded: the request did not come in time.
            MeshError: RESOURCE_EXHAUSTED, ``REQUEST_TOO_LARGE``.
        """
        host = host_of(context.peer())
        if self._calls[host] >= _HOST_CALLS or self._calls.total() >= _RUNTIME_CALLS:
            raise Overloaded("too many calls of health and reflection wait", 1.0)
        self._calls[host] += 1
        try:
            async with asyncio.timeout(_RUNTIME_S) as life, self._turn(host, life):
                data: Any = await context.read()
                if data is not grpc.aio.EOF and len(data) > _RUNTIME_BYTES:
                    size, data = len(data), None  # the error's frames would keep it
                    raise _too_large(size, _RUNTIME_BYTES, "this method")
                return data
        except TimeoutError:
            raise DeadlineExceeded(
                f"no request came within {_RUNTIME_S:g} s, or sooner while other calls wait"
            ) from None
        finally:
            self._calls[host] -= 1
            if not self._calls[host]:
                del self._calls[host]

    @asynccontextmanager
    async def _turn(self, host: str, life: asyncio.Timeout) -> AsyncIterator[None]:
        """Hold a turn, in which ``life`` ends early as soon as others wait for theirs."""
        if self._calls[host] > 1 or self._turns.locked():
            for one, began in self._reading.items():
                _hurry(one, began)
        self._waiting += 1
        waits = True
        try:
            async with self._hosts.of(host), self._turns:
                self._waiting -= 1
                waits = False
                self._reading[life] = began = asyncio.get_running_loop().time()
                if self._waiting:
                    _hurry(life, began)
                yield
        finally:
            self._waiting -= waits
            self._reading.pop(life, None)


def _hurry(life: asyncio.Timeout, began: float) -> None:
    """Let a request come no later than a quarter of a second after its turn began."""
    ends = life.when()
    if not life.expired() and ends is not None:
        life.reschedule(min(ends, began + _HURRIED_S))


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
        # A reason that no objective of availability counts: its caller alone is to blame.
        raise MeshError(
            grpc.StatusCode.DEADLINE_EXCEEDED, "STREAM_IDLE", f"no request came within {longest_s:g} s"
        ) from None


def _decoder(handler: Handler, largest: int, method: str) -> _Decoder:
    """Return what decodes requests of the handler; undecodable bytes are the caller's error."""
    decode = cast(Callable[[bytes], Any], handler.request_deserializer or bytes)
    descriptor = getattr(getattr(decode, "__self__", None), "DESCRIPTOR", None)
    name = descriptor.full_name if descriptor is not None else "request"
    # The servicer of a stream says which item of the whole stream has a text that is too long.
    texts = not handler.request_streaming
    scan = scanner_of(descriptor, texts=texts).scan if descriptor is not None else _as_sent

    def decoded(data: bytes) -> Any:
        try:
            return decode(data)
        except (DecodeError, ValueError) as error:
            raise malformed(name, str(error)) from None

    return _Decoder(method, largest, facts_of(method).item_errors, scan, decoded)


def _too_large(size: int, largest: int, method: str) -> MeshError:
    return MeshError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "REQUEST_TOO_LARGE",
        f"the request has {size:,} bytes; {method} takes at most {largest:,}",
    )


def _as_sent(data: bytes, _most: int = 0) -> int:
    return len(data)


async def discard_requests(context: Context) -> None:
    """Read requests until the caller has sent the last, pauses, or has sent for long enough.

    A grpc.aio caller that writes to an ended call reports INTERNAL, "Internal error from Core", instead of
    the status it was sent (seen with grpcio 1.85 in every second call).

    Args:
        context: the call, whose deserializer is none.
    """
    with suppress(TimeoutError, grpc.aio.BaseError):
        async with asyncio.timeout(_DISCARD_S):
            data: Any = None
            while data is not grpc.aio.EOF:
                async with asyncio.timeout(_PAUSE_S):
                    data = await context.read()
