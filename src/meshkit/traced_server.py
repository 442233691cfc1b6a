"""The server's side of a trace."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
from opentelemetry import context as otel_context

from meshkit.handlers import Context, Handler, HandlerInterceptor, behaviour_of, with_behaviour
from meshkit.recorder import RpcRecorder, extracted

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class TracedServer(HandlerInterceptor):
    """Server interceptor that runs each call within the trace its caller sent and records it.

    Stands outside the guard, so that it sees the status the caller gets.
    """

    def __init__(self, recorder: RpcRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def wrap(self, method: str, handler: Handler) -> Handler:
        behaviour = behaviour_of(handler)

        async def traced(request: Any, context: Context) -> Any:
            record = self._recorder.begin(method, extracted(context.invocation_metadata()))
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
                # Soon instead of now: the answer need not wait for its record.
                asyncio.get_running_loop().call_soon(record.end, code, trailers)

        return with_behaviour(handler, traced)


def _code_of(context: Context) -> grpc.StatusCode:
    """The status as set so far: a code, or, of a call that set none, gRPC's number for OK."""
    code: object = context.code()
    if isinstance(code, grpc.StatusCode):
        return code
    return _CODES.get(code, grpc.StatusCode.UNKNOWN) if isinstance(code, int) else grpc.StatusCode.OK
