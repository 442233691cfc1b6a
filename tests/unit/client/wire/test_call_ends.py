"""The status of a call that ends while its caller writes is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc
import pytest

from evenmesh._async import adapter
from evenmesh.wire.call_ends import CallEnd
from evenmesh.wire.interceptors import of_every_kind

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


async def end(
    requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
) -> AsyncIterator[bytes]:
    """Answer the first request, and end the call."""
    async for request in requests:
        yield request
        return


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a server that refuses calls, or ends them early."""
    server = grpc.aio.server()
    methods = {"Refuse": refuse, "End": end}
    handlers = {
        name: grpc.stream_stream_rpc_method_handler(method)  # type: ignore[arg-type]
        for name, method in methods.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("S", handlers),))
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


async def test_a_write_to_a_call_that_ended_well_is_no_error(channel: grpc.aio.Channel) -> None:
    errors = []
    for _ in range(CALLS):
        call = channel.stream_stream("/S/End")(timeout=60)
        end = CallEnd(call)
        writing = asyncio.create_task(write(call))
        try:
            _ = [message async for message in call]
        except grpc.aio.AioRpcError as error:
            errors.append(end.error(error))
        await writing
    assert errors, "grpc.aio lost none of them"
    assert set(errors) == {None}


@pytest.mark.parametrize("method", ["Refuse", "End"])
async def test_a_stream_reads_how_its_call_ended_however_much_was_written_meanwhile(
    channel: grpc.aio.Channel, method: str
) -> None:
    ends, replies = set(), 0
    for _ in range(CALLS):
        stream = adapter.Stream(channel.stream_stream(f"/S/{method}"), 60)
        for _ in range(20):
            await stream.write(bytes(30_000))
        try:
            while await stream.read() is not None:
                replies += 1
            ends.add("well")
        except grpc.aio.AioRpcError as error:
            ends.add(f"{error.code().name}: {error.details()}")
        stream.cancel()
    expected = ("INVALID_ARGUMENT: no", 0) if method == "Refuse" else ("well", CALLS)
    assert (ends, replies) == ({expected[0]}, expected[1])


async def pass_on(continuation: Any, details: Any, requests: Any) -> Any:
    """Intercept nothing."""
    return await continuation(details, requests)


async def test_a_call_through_interceptors_leaves_no_task_that_waits_for_requests() -> None:
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(end)  # type: ignore[arg-type]
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("S", {"End": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    before = asyncio.all_tasks()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", interceptors=of_every_kind(pass_on)) as channel:
        call = channel.stream_stream("/S/End")(timeout=60)
        CallEnd(call)
        await call.write(b"one")
        assert [message async for message in call] == [b"one"]
        async with asyncio.timeout(30):
            while waiting := [
                task for task in asyncio.all_tasks() - before if "consume_request" in repr(task)
            ]:
                await asyncio.wait(waiting)
    await server.stop(None)


async def test_an_error_of_its_own_stays(channel: grpc.aio.Channel) -> None:
    call = channel.stream_unary("/S/Unknown")(timeout=60)
    end = CallEnd(call)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    assert end.error(raised.value) is raised.value
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
