"""Trace incoming calls."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

import grpc
from opentelemetry import context as otel_context

from evenmesh_kit.rpc.handlers import Behaviour, Context, Handler, HandlerInterceptor
from evenmesh_kit.telemetry.recorder import RpcRecorder, extract_context

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class TracedServer(HandlerInterceptor):
    """Server interceptor that runs each call within its caller's trace and records it.

    Runs outside the guard, so that it sees the status that the caller gets.
    """

    def __init__(self, recorder: RpcRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def around(self, method: str, handler: Handler, behaviour: Behaviour) -> Behaviour:
        async def traced(request: Any, context: Context) -> Any:
            given_s = cast(float | None, context.time_remaining())  # None without a deadline
            parent = extract_context(context.invocation_metadata())
            record = self._recorder.begin(method, parent, given_s)
            token = otel_context.attach(record.context)
            code = grpc.StatusCode.UNKNOWN
            trailers: Any = ()
            try:
                result = await behaviour(request, context)
                code = _code_of(context)
            except grpc.aio.AbortError:
                code, trailers = _code_of(context), context.trailing_metadata()
                raise
            except asyncio.CancelledError:
                code = grpc.StatusCode.CANCELLED
                raise
            else:
                return result
            finally:
                otel_context.detach(token)
                # Soon instead of now, so that the answer does not wait for its record.
                asyncio.get_running_loop().call_soon(record.end, code, trailers)

        return traced


def _code_of(context: Context) -> grpc.StatusCode:
    """Return the status set so far; OK if the call set none."""
    code: object = context.code()
    if isinstance(code, grpc.StatusCode):
        return code
    return _CODES.get(code, grpc.StatusCode.UNKNOWN) if isinstance(code, int) else grpc.StatusCode.OK
