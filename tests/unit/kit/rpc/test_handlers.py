"""Interceptors wrap a method once, in their order, and only the methods that they cover."""

from __future__ import annotations

from typing import Any

import grpc

from evenmesh_kit.rpc.handlers import Behaviour, Chain, Context, Handler, HandlerInterceptor

METHOD = "/evenmesh.test.v1.EchoService/unary"


class Noting(HandlerInterceptor):
    """Notes when it wraps a method, and when a call passes."""

    def __init__(self, name: str, notes: list[str], *, only: str = "") -> None:
        super().__init__()
        self._name = name
        self._notes = notes
        self._only = only

    def covers(self, method: str) -> bool:
        return method.endswith(self._only)

    def around(self, method: str, handler: Handler, behaviour: Behaviour) -> Behaviour:
        self._notes.append(f"wrap {self._name}")

        async def noting(request: Any, context: Context) -> Any:
            self._notes.append(self._name)
            return await behaviour(request, context)

        return noting


class Details(grpc.HandlerCallDetails):
    """The details of a call."""

    def __init__(self, method: str) -> None:
        self.method = method


async def _echo(request: Any, _context: Any) -> Any:
    return request


async def _called(interceptor: HandlerInterceptor, handler: Handler | None, method: str = METHOD) -> Any:
    async def found(_details: grpc.HandlerCallDetails) -> Any:
        return handler

    wrapped: Any = await interceptor.intercept_service(found, Details(method))
    return None if wrapped is None else await wrapped.unary_unary("hello", None)


async def test_a_chain_runs_its_interceptors_in_order_and_wraps_a_method_once() -> None:
    notes: list[str] = []
    chain = Chain([Noting("outer", notes), Noting("other", notes, only="other"), Noting("inner", notes)])
    handler = grpc.unary_unary_rpc_method_handler(_echo)
    assert await _called(chain, handler) == "hello"
    assert notes == ["wrap inner", "wrap outer", "outer", "inner"]
    assert await _called(chain, handler) == "hello"
    assert notes[4:] == ["outer", "inner"]
    # Another handler of the same method is wrapped anew.
    assert await _called(chain, grpc.unary_unary_rpc_method_handler(_echo)) == "hello"
    assert notes[6:] == ["wrap inner", "wrap outer", "outer", "inner"]


async def test_an_unknown_method_stays_unknown() -> None:
    notes: list[str] = []
    assert await _called(Chain([Noting("outer", notes)]), None) is None
    assert not notes


async def test_a_method_that_nobody_covers_keeps_its_handler() -> None:
    notes: list[str] = []
    handler = grpc.unary_unary_rpc_method_handler(_echo)
    assert await _called(Chain([Noting("other", notes, only="other")]), handler) == "hello"
    assert not notes
