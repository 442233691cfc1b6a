"""A server that answers every method with what no service of ours would say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random
from typing import Any, Final

import grpc
from google.rpc import error_details_pb2, status_pb2

from tests.fuzz import wire
from tests.fuzz.mesh import RPCS, Rpc

_BY_PATH: Final = {rpc.path: rpc for rpc in RPCS}


class OddHandler(grpc.GenericRpcHandler):
    """Answers drawn from a seed: a hundred methods called in the same order get the same.

    Args:
        seed: of the answers.
    """

    def __init__(self, seed: str) -> None:
        self._rng = Random(seed)

    def service(self, handler_call_details: Any) -> Any:
        """The handler of any method of the contract."""
        rpc = _BY_PATH.get(handler_call_details.method)
        if rpc is None:
            return None

        async def one(_: Any, context: Any) -> bytes:
            return await self._one(rpc, context)

        async def many(_: Any, context: Any) -> AsyncIterator[bytes]:
            async for reply in self._many(rpc, context):
                yield reply

        if rpc.method.server_streaming:
            make = (
                grpc.stream_stream_rpc_method_handler
                if rpc.takes_many
                else grpc.unary_stream_rpc_method_handler
            )
            return make(many)
        return (
            grpc.stream_unary_rpc_method_handler if rpc.takes_many else grpc.unary_unary_rpc_method_handler
        )(one)

    async def _one(self, rpc: Rpc, context: Any) -> bytes:
        await self._perhaps_fail(context)
        return self._reply(rpc)

    async def _many(self, rpc: Rpc, context: Any) -> AsyncIterator[bytes]:
        for _ in range(self._rng.choice((0, 1, 2, 5))):
            yield self._reply(rpc)
        await self._perhaps_fail(context)

    def _reply(self, rpc: Rpc) -> bytes:
        rng = self._rng
        made = wire.message(rpc.method.output_type, rng, density=rng.choice((0.0, 0.1, 0.5, 1.0)))
        return wire.mutated(made, rng) if rng.random() < 0.1 else made

    async def _perhaps_fail(self, context: Any) -> None:
        rng = self._rng
        if rng.random() > 0.2:
            return
        code = rng.choice([one for one in grpc.StatusCode if one is not grpc.StatusCode.OK])
        if rng.random() < 0.5:
            status = status_pb2.Status(code=rng.choice((code.value[0], 99, 0)), message="said so")
            status.details.add().Pack(
                error_details_pb2.ErrorInfo(reason=rng.choice(("", "R")), domain="evenmesh")
            )
            details = (
                wire.mutated(status.SerializeToString(), rng)
                if rng.random() < 0.5
                else status.SerializeToString()
            )
            context.set_trailing_metadata((("grpc-status-details-bin", details),))
        await context.abort(code, rng.choice(("", "why", "😀")))
