"""Method handlers of gRPC, wrapped once per method instead of once per call."""

from __future__ import annotations

import abc
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, TypeAlias, TypeVar, cast

import grpc

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
"""The context of a call, whatever its messages."""
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
"""A method as gRPC knows it: kind, behaviour, deserializer, serializer."""
Behaviour: TypeAlias = Callable[[Any, Context], Awaitable[Any]]
"""A method's code as a coroutine function; one with a response stream writes to the context."""

RUNTIME: Final = "/grpc."
"""How the full names of gRPC's own methods (health, reflection) begin."""
_Req = TypeVar("_Req")
_Res = TypeVar("_Res")


class HandlerInterceptor(grpc.aio.ServerInterceptor, abc.ABC):
    """A server interceptor whose work per call is one look-up: methods are wrapped when first called.

    gRPC's own services (health, reflection) pass untouched, unless :meth:`covers` says otherwise.
    """

    def __init__(self) -> None:
        self._wrapped: dict[str, tuple[Handler, Handler]] = {}

    @abc.abstractmethod
    def wrap(self, method: str, handler: Handler) -> Handler:
        """The handler to use instead; ``method`` is the full name, ``/package.Service/Method``."""

    def covers(self, method: str) -> bool:
        """Whether the method, by its full name, is wrapped."""
        return not method.startswith(RUNTIME)

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[_Req, _Res] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[_Req, _Res] | None:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not self.covers(method):
            return handler
        known = self._wrapped.get(method)
        if known is None or known[0] is not handler:
            known = self._wrapped[method] = (handler, self.wrap(method, handler))
        return known[1]


def behaviour_of(handler: Handler) -> Behaviour:
    """The handler's code as one coroutine function, in whichever of gRPC's styles it is written.

    An async generator is iterated here, in the call's own task, and closed before the call ends: its
    ``finally`` blocks run in time and with the call's context variables.
    """
    code = cast(
        Callable[[Any, Context], Any],
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream,
    )
    if inspect.iscoroutinefunction(code):
        return code
    if inspect.isasyncgenfunction(code):
        generate = code

        async def stream(request: Any, context: Context) -> None:
            async with aclosing(generate(request, context)) as responses:
                async for response in responses:
                    await context.write(response)

        return stream

    async def call(request: Any, context: Context) -> Any:
        result = code(request, context)
        if isinstance(result, AsyncIterator):
            async for response in result:
                await context.write(response)
            return None
        return await result if inspect.isawaitable(result) else result

    return call


def with_behaviour(
    handler: Handler, behaviour: Behaviour, deserializer: Callable[[bytes], Any] | None = None
) -> Handler:
    """A handler of the same kind with other code and, if given, another deserializer."""
    kinds = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    kind = kinds[handler.request_streaming, handler.response_streaming]
    return kind(
        cast(Any, behaviour),
        request_deserializer=deserializer or handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )
