"""The caller's side of a trace: each kind of call takes the trace context along and is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar, cast

import grpc
from opentelemetry import context as otel_context

from meshkit.recorder import RpcRecord, RpcRecorder, injected

Q = TypeVar("Q")
R = TypeVar("R")
Requests = AsyncIterable[Q] | Iterable[Q]


class _Traced:
    """What the four kinds have in common."""

    def __init__(self, recorder: RpcRecorder) -> None:
        self._recorder = recorder
        self._ends: set[asyncio.Task[None]] = set()

    def _begin(self, details: grpc.aio.ClientCallDetails) -> tuple[RpcRecord, grpc.aio.ClientCallDetails]:
        method = cast(str | bytes, details.method)  # bytes, whatever its type says
        record = self._recorder.begin(
            method.decode() if isinstance(method, bytes) else method, otel_context.get_current()
        )
        metadata = grpc.aio.Metadata(*(details.metadata or ()), *injected(record.context).items())
        return record, grpc.aio.ClientCallDetails(
            details.method, details.timeout, metadata, details.credentials, details.wait_for_ready
        )

    def _end_with(self, record: RpcRecord, call: grpc.aio.Call) -> None:
        """Ends the record when the call is over, however that comes about."""

        async def end() -> None:
            record.end(await call.code())

        def on_done(_: object) -> None:
            task = asyncio.ensure_future(end())
            self._ends.add(task)
            task.add_done_callback(self._ends.discard)

        call.add_done_callback(on_done)


class TracedUnaryUnary(_Traced, grpc.aio.UnaryUnaryClientInterceptor):
    """Traces calls with one request and one response."""

    async def intercept_unary_unary(
        self,
        continuation: Callable[[grpc.aio.ClientCallDetails, Q], Awaitable[grpc.aio.UnaryUnaryCall[Q, R]]],
        client_call_details: grpc.aio.ClientCallDetails,
        request: Q,
    ) -> grpc.aio.UnaryUnaryCall[Q, R]:
        record, details = self._begin(client_call_details)
        call = await continuation(details, request)
        self._end_with(record, call)
        return call


class TracedUnaryStream(_Traced, grpc.aio.UnaryStreamClientInterceptor):
    """Traces calls with one request and a stream of responses."""

    async def intercept_unary_stream(
        self,
        continuation: Callable[[grpc.aio.ClientCallDetails, Q], Awaitable[grpc.aio.UnaryStreamCall[Q, R]]],
        client_call_details: grpc.aio.ClientCallDetails,
        request: Q,
    ) -> grpc.aio.UnaryStreamCall[Q, R]:
        record, details = self._begin(client_call_details)
        call = await continuation(details, request)
        self._end_with(record, call)
        return call


class TracedStreamUnary(_Traced, grpc.aio.StreamUnaryClientInterceptor):
    """Traces calls with a stream of requests and one response."""

    async def intercept_stream_unary(
        self,
        continuation: Callable[
            [grpc.aio.ClientCallDetails, Requests[Q]], Awaitable[grpc.aio.StreamUnaryCall[Q, R]]
        ],
        client_call_details: grpc.aio.ClientCallDetails,
        request_iterator: Requests[Q],
    ) -> grpc.aio.StreamUnaryCall[Q, R]:
        record, details = self._begin(client_call_details)
        call = await continuation(details, request_iterator)
        self._end_with(record, call)
        return call


class TracedStreamStream(_Traced, grpc.aio.StreamStreamClientInterceptor):
    """Traces calls with a stream of requests and a stream of responses."""

    async def intercept_stream_stream(
        self,
        continuation: Callable[
            [grpc.aio.ClientCallDetails, Requests[Q]], Awaitable[grpc.aio.StreamStreamCall[Q, R]]
        ],
        client_call_details: grpc.aio.ClientCallDetails,
        request_iterator: Requests[Q],
    ) -> grpc.aio.StreamStreamCall[Q, R]:
        record, details = self._begin(client_call_details)
        call = await continuation(details, request_iterator)
        self._end_with(record, call)
        return call


class _SyncDetails(NamedTuple):
    method: str
    timeout: float | None
    metadata: tuple[tuple[str, str | bytes], ...] | None
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


class TracedSync(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Traces calls of all four kinds on a channel without event loop."""

    def __init__(self, recorder: RpcRecorder) -> None:
        self._recorder = recorder

    def _call(
        self, continuation: Callable[[Any, Any], Any], details: grpc.ClientCallDetails, request: object
    ) -> Any:
        record = self._recorder.begin(details.method, otel_context.get_current())
        metadata = (*(details.metadata or ()), *injected(record.context).items())
        traced = _SyncDetails(
            details.method,
            details.timeout,
            metadata,
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )
        call = continuation(traced, request)
        call.add_done_callback(lambda done: record.end(done.code()))
        return call

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], client_call_details: grpc.ClientCallDetails, request: Q
    ) -> Any:
        return self._call(continuation, client_call_details, request)

    def intercept_unary_stream(
        self, continuation: Callable[[Any, Any], Any], client_call_details: grpc.ClientCallDetails, request: Q
    ) -> Any:
        return self._call(continuation, client_call_details, request)

    def intercept_stream_unary(
        self,
        continuation: Callable[[Any, Any], Any],
        client_call_details: grpc.ClientCallDetails,
        request_iterator: Iterator[Q],
    ) -> Any:
        return self._call(continuation, client_call_details, request_iterator)

    def intercept_stream_stream(
        self,
        continuation: Callable[[Any, Any], Any],
        client_call_details: grpc.ClientCallDetails,
        request_iterator: Iterator[Q],
    ) -> Any:
        return self._call(continuation, client_call_details, request_iterator)
