"""Trace outgoing calls: send the trace context with each, and record it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc
from opentelemetry import context as otel_context

from evenmesh.wire.interceptors import (
    Continuation,
    SyncCallDetails,
    SyncInterceptor,
    async_details,
    of_every_kind,
)
from evenmesh_kit.telemetry.recorder import RpcRecord, RpcRecorder, inject_context


def traced(recorder: RpcRecorder) -> list[grpc.aio.ClientInterceptor]:
    """Return interceptors that trace the calls of an asyncio channel."""
    ends: set[asyncio.Task[None]] = set()

    async def end(record: RpcRecord, call: grpc.aio.Call) -> None:
        record.end(await call.code())

    async def intercept(continuation: Continuation, details: Any, request: Any) -> Any:
        method = cast(str | bytes, details.method)  # bytes, whatever its type says
        record = recorder.begin(
            method.decode() if isinstance(method, bytes) else method, otel_context.get_current()
        )
        call = await continuation(async_details(details, inject_context(record.context).items()), request)

        def on_done(_: object) -> None:
            task = asyncio.ensure_future(end(record, call))
            ends.add(task)
            task.add_done_callback(ends.discard)

        call.add_done_callback(on_done)
        return call

    return of_every_kind(intercept)


class TracedSync(SyncInterceptor):
    """Traces calls of all four kinds on a channel without an event loop."""

    def __init__(self, recorder: RpcRecorder) -> None:
        self._recorder = recorder

    def intercept(self, continuation: Continuation, details: Any, request: Any) -> Any:
        record = self._recorder.begin(details.method, otel_context.get_current())
        call = continuation(SyncCallDetails.adding(details, *inject_context(record.context).items()), request)
        call.add_done_callback(lambda done: record.end(done.code()))
        return call
