"""What the gateway reports of a call that ends while its requests are still written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from evenmesh._async.restarts import AsyncRestarts
from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import InvalidField
from evenmesh_gateway.calls import Call
from evenmesh_gateway.forwarding import Forwarder
from evenmesh_gateway.methods import public_methods
from evenmesh_gateway.settings import GatewaySettings
from evenmesh_kit.rpc.statuses import abort

CONVERSE = public_methods()["/evenmesh.orchestrator.v1.OrchestratorService/Converse"]
CALLS = 40
"""grpc.aio alone loses the status of more than half of them."""


async def refuse(
    requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
) -> AsyncIterator[bytes]:
    """End the call at its first request."""
    async for request in requests:
        await abort(context, InvalidField("options.patience", "must be at most 10"))
        yield request


async def requests() -> AsyncIterator[bytes]:
    """Send more than the flow control lets through."""
    for _ in range(100):
        yield bytes(30_000)


async def test_who_still_sends_learns_why_it_is_refused() -> None:
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(refuse)  # type: ignore[arg-type]
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("S", {"Refuse": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            upstreams: Any = SimpleNamespace(
                call=lambda _: channel.stream_stream("/S/Refuse"), restarts=AsyncRestarts()
            )
            forwarder = Forwarder(upstreams, GatewaySettings())
            for _ in range(CALLS):
                call = Call(Deadline.after(60), ())
                with pytest.raises(InvalidField, match="at most 10"):
                    [reply async for reply in forwarder.replies(CONVERSE, requests(), call)]
    finally:
        await server.stop(None)
