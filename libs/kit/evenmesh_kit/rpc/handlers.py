"""Wrap gRPC's method handlers once per method instead of once per call."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, Final, TypeAlias, TypeVar, cast

import grpc

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
"""The context of a call with any messages."""
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
"""A method of gRPC: kind, behaviour, deserializer, serializer."""
Behaviour: TypeAlias = Callable[[Any, Context], Awaitable[Any]]
"""A method's code as a coroutine function, which writes a response stream to the context."""

Write: TypeAlias = Callable[[Any], Awaitable[None]]
"""Writes one message of a response stream."""

RUNTIME: Final = "/grpc."
"""Prefix of the full names of gRPC's own methods (health, reflection)."""
_Req = TypeVar("_Req")
_Res = TypeVar("_Res")


class HandlerInterceptor(grpc.aio.ServerInterceptor):
    """A server interceptor that wraps each method on its first call, so that later calls cost one lookup.

    A subclass overrides :meth:`around`, or :meth:`wrap` for more than the code. gRPC's own services (health,
    reflection) are left alone unless :meth:`covers` says otherwise.
    """

    def __init__(self) -> None:
        self._wrapped: dict[str, tuple[Handler, Handler]] = {}

    def around(self, method: str, handler: Handler, behaviour: Behaviour) -> Behaviour:
        """Return the code to run instead of the handler's own, of the method ``/package.Service/Method``."""
        return behaviour

    def wrap(self, method: str, handler: Handler) -> Handler:
        """Return the handler to use instead."""
        return with_behaviour(handler, self.around(method, handler, behaviour_of(handler)))

    def covers(self, method: str) -> bool:
        """Return whether to wrap the method of that full name."""
        return not method.startswith(RUNTIME)

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[_Req, _Res] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[_Req, _Res] | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        known = self._wrapped.get(method)
        if known is None or known[0] is not handler:
            wrapped = self.wrap(method, handler) if self.covers(method) else handler
            known = self._wrapped[method] = (handler, wrapped)
        return known[1]


class Chain(HandlerInterceptor):
    """Several interceptors in one, the outermost first: a call costs one lookup in all, not one of each.

    Args:
        links: the interceptors.
    """

    def __init__(self, links: Iterable[HandlerInterceptor]) -> None:
        super().__init__()
        self._links = tuple(links)

    def covers(self, method: str) -> bool:
        return any(link.covers(method) for link in self._links)

    def wrap(self, method: str, handler: Handler) -> Handler:
        for link in reversed(self._links):
            if link.covers(method):
                handler = link.wrap(method, handler)
        return handler


def behaviour_of(
    handler: Handler,
    writer: Callable[[Context], AbstractAsyncContextManager[Write]] | None = None,
) -> Behaviour:
    """Return the handler's code, in any of gRPC's styles, as one coroutine function.

    It iterates an async generator in the call's own task and closes it before the call ends, so that
    ``finally`` blocks run in time and with the call's context variables.

    Args:
        handler: the handler.
        writer: gives within a block what writes the messages of a response stream; None for gRPC's own.
    """
    opened = _plain if writer is None else writer
    code = cast(
        Callable[[Any, Context], Any],
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream,
    )
    if inspect.iscoroutinefunction(code):
        return code
    if inspect.isasyncgenfunction(code):
        generate = code

        async def stream(request: Any, context: Context) -> None:
            async with opened(context) as write, aclosing(generate(request, context)) as responses:
                async for response in responses:
                    await write(response)

        return stream

    async def call(request: Any, context: Context) -> Any:
        result = code(request, context)
        if isinstance(result, AsyncIterator):
            async with opened(context) as write:
                async for response in result:
                    await write(response)
            return None
        return await result if inspect.isawaitable(result) else result

    return call


@asynccontextmanager
async def _plain(context: Context) -> AsyncIterator[Write]:
    yield context.write


def with_behaviour(
    handler: Handler, behaviour: Behaviour, serializer: Callable[[Any], bytes] | None = None
) -> Handler:
    """Return a handler of the same kind with other code, and with a serializer of replies if one is given."""
    kinds = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    kind = kinds[handler.request_streaming, handler.response_streaming]
    return kind(
        cast(Any, behaviour),
        request_deserializer=handler.request_deserializer,
        response_serializer=serializer or handler.response_serializer,
    )


def cancellation_requested() -> bool:
    """Return whether somebody cancelled the running task, as gRPC does when the caller is gone."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
