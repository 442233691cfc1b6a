"""The status of a call that ends while its caller writes is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc
import pytest

from evenmesh.wire.call_ends import CallEnd

CALLS = 40
"""Without keeping it, more than half of them lose their status."""


async def refuse(
    requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
) -> AsyncIterator[bytes]:
    """End the call at its first request."""
    async for request in requests:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no", (("reason", "because"),))
        yield request


async def write(call: Any) -> None:
    """Write until the call is over."""
    with suppress(grpc.RpcError, asyncio.InvalidStateError):
        while True:
            await call.write(bytes(30_000))


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a server that refuses."""
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(refuse)  # type: ignore[arg-type]
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("S", {"Refuse": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


async def test_a_write_to_a_call_that_has_ended_does_not_hide_why_it_ended(channel: grpc.aio.Channel) -> None:
    for _ in range(CALLS):
        call = channel.stream_stream("/S/Refuse")(timeout=60)
        end = CallEnd(call)
        writing = asyncio.create_task(write(call))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async for _ in call:
                pass
        await writing
        error = end.error(raised.value)
        assert isinstance(error, grpc.aio.AioRpcError)
        assert (error.code(), error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "no")
        assert dict(error.trailing_metadata())["reason"] == "because"


async def test_an_error_of_its_own_stays(channel: grpc.aio.Channel) -> None:
    call = channel.stream_unary("/S/Unknown")(timeout=60)
    end = CallEnd(call)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    assert end.error(raised.value) is raised.value
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
