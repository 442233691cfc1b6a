"""Replies that nobody reads count until they are read, and hold little memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from evenmesh.common.v1.common_pb2 import ItemError
from evenmesh.wire import errors
from evenmesh.wire.credentials import CREDENTIAL_KEY
from evenmesh_kit.rpc import runtime_streams
from evenmesh_kit.security.keys import KeyEntry, add_entry, new_key
from tests.support.waiting import until
from tests.unit.kit.conftest import SERVICE

MIB = 2**20
_REQUEST = ItemError(message="a")


async def large(request: Any, context: Any) -> ItemError:
    """Answer with more than a caller takes who does not read."""
    return ItemError(message="x" * (5 * MIB))


async def pages(request: Any, context: Any) -> AsyncIterator[ItemError]:
    """Answer with more than a caller takes who does not read, and then once more."""
    for _ in range(2):
        yield ItemError(message="x" * (5 * MIB))


BEHAVIOURS = {"unary": large, "server_stream": pages}


@pytest.fixture
async def unread() -> AsyncIterator[Any]:
    """Begins calls of which nothing is read until ``read`` is called."""
    channels = []

    def begin(server: Any, kind: str, **options: Any) -> Any:
        # With its probe a caller would make its window larger than a reply.
        options_here = [("grpc.http2.bdp_probe", 0), ("grpc.max_receive_message_length", -1)]
        channels.append(grpc.aio.insecure_channel(server.address, options_here))
        method = channels[-1].unary_stream(
            f"/{SERVICE}/{kind}",
            request_serializer=ItemError.SerializeToString,
            response_deserializer=ItemError.FromString,
        )
        return method(_REQUEST, **{"timeout": None, **options})

    yield begin
    for channel in channels:
        await channel.close()


async def reason_of(call: Any) -> str:
    """Read a call to its end, and return why it failed."""
    with pytest.raises(grpc.RpcError) as failed:
        while await call.read() is not grpc.aio.EOF:
            pass
    return errors.from_rpc_error(failed.value).reason


@pytest.mark.parametrize("kind", BEHAVIOURS)
async def test_replies_that_nobody_reads_hold_no_more_memory_than_is_allowed(
    serve: Any, call: Any, unread: Any, kind: str
) -> None:
    server = await serve(settings={"max_reply_bytes": 16 * MIB, "queue_s": 0}, **BEHAVIOURS)
    echo = call(server)
    memory = server._replies._memory
    held = [unread(server, kind) for _ in range(3)]
    await until(lambda: memory.in_flight > 15 * MIB)
    assert await reason_of(unread(server, kind)) == "OVERLOADED"
    assert await echo("client_stream", "a", "b") == ["a,b"], "small replies hold nothing"
    for one in held:
        assert len((await one.read()).message) == 5 * MIB
        one.cancel()
    await until(lambda: memory.in_flight == 0)


async def test_a_tenants_unread_replies_leave_room_for_those_of_others(
    serve: Any, call: Any, unread: Any, tmp_path: Path
) -> None:
    path, credentials = tmp_path / "keys.toml", {}
    for tenant in ("ada", "mallory"):
        key, digest = new_key()
        add_entry(path, KeyEntry(name=tenant, sha256=digest, tenant=tenant, roles=["admin"]))
        credentials[tenant] = ((CREDENTIAL_KEY, f"Bearer {key}"),)
    limits = {"api_keys": path, "max_reply_bytes": 20 * MIB, "tenant_share": 0.6, "queue_s": 0}
    server = await serve(settings=limits, unary=large)
    echo = call(server)
    held = [unread(server, "unary", metadata=credentials["mallory"]) for _ in range(2)]
    await until(lambda: server._replies._memory.in_flight > 10 * MIB)
    assert await reason_of(unread(server, "unary", metadata=credentials["mallory"])) == "SHARE_FULL"
    assert (await echo.method("unary")(_REQUEST, metadata=credentials["ada"], timeout=60)).message
    for one in held:
        one.cancel()


async def test_a_call_counts_until_its_reply_is_read(serve: Any, unread: Any) -> None:
    returned = asyncio.Event()

    async def answer(request: Any, context: Any) -> ItemError:
        asyncio.get_running_loop().call_later(0.2, returned.set)
        return await large(request, context)

    server = await serve(unary=answer)
    running = unread(server, "unary")
    await returned.wait()
    assert server.in_flight == 1
    assert len((await running.read()).message) == 5 * MIB
    await until(lambda: server.in_flight == 0)


@pytest.mark.parametrize("kind", BEHAVIOURS)
async def test_a_call_whose_time_is_over_counts_until_its_caller_has_read(
    serve: Any, unread: Any, kind: str
) -> None:
    """gRPC can take no message back, and sends no status while one waits."""
    closed = asyncio.Event()

    async def closing(request: Any, context: Any) -> AsyncIterator[ItemError]:
        try:
            async for page in pages(request, context):
                yield page
        finally:
            closed.set()

    limits = {"max_call_s": 0.3, "max_stream_s": 0.3, "default_deadline_s": 3600}
    server = await serve(settings=limits, unary=large, server_stream=closing)
    running = unread(server, kind)
    if kind == "server_stream":
        async with asyncio.timeout(60):
            await closed.wait()
    await asyncio.sleep(1.0)
    assert (server.in_flight, server._replies._memory.in_flight > 5 * MIB) == (1, True)
    assert len((await running.read()).message) == 5 * MIB
    assert await reason_of(running) == ("CALL_TOO_LONG" if kind == "unary" else "STREAM_TOO_LONG")
    await until(lambda: server.in_flight == 0)


@pytest.mark.parametrize("kind", BEHAVIOURS)
async def test_callers_who_leave_their_replies_unread_are_forgotten(
    serve: Any, unread: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = await serve(**BEHAVIOURS)
    running = [unread(server, kind) for _ in range(10)]
    await until(lambda: server._replies._memory.in_flight > 50 * MIB)
    for one in running:
        one.cancel()
    await until(lambda: server.in_flight == 0)
    assert server._replies._memory.in_flight == 0
    assert not caplog.records, "a caller who leaves is no fault"


async def test_a_server_that_stops_waits_no_longer_than_its_time(serve: Any, unread: Any) -> None:
    server = await serve(settings={"max_call_s": 0.2}, unary=large)
    running = unread(server, "unary")
    await until(lambda: server._replies._memory.in_flight > 5 * MIB)
    await asyncio.sleep(0.5)
    async with asyncio.timeout(60):
        await server.stop(0.1)
    assert server.in_flight == 0
    running.cancel()


_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_NO_WINDOW = bytes.fromhex("000006040000000000") + bytes.fromhex("000400000000")


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _headers(path: str) -> bytes:
    given = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "mesh", "te": "trailers"}
    given["content-type"] = "application/grpc"
    return b"".join(
        b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()
        for name, value in given.items()
    )


@asynccontextmanager
async def windowless(address: str) -> AsyncIterator[asyncio.StreamWriter]:
    """Open a connection whose client lets the server send no byte of any reply."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(_PREFACE + _NO_WINDOW)
    await reader.readexactly(9)
    writer.write(_frame(4, 1, 0, b""))  # the server's settings are taken
    try:
        yield writer
    finally:
        writer.close()


def call_without_window(writer: asyncio.StreamWriter, stream: int, path: str) -> None:
    """Make a call with an empty message."""
    writer.write(_frame(1, 4, stream, _headers(path)) + _frame(0, 1, stream, bytes(5)))


async def test_small_replies_that_cannot_be_sent_count_too(serve: Any) -> None:
    server = await serve()
    async with windowless(server.address) as writer:
        for number in range(20):
            call_without_window(writer, 2 * number + 1, f"/{SERVICE}/unary")
        await until(lambda: server.in_flight == 20)
        await asyncio.sleep(0.3)
        assert server.in_flight == 20
    await until(lambda: server.in_flight == 0)


async def test_answers_of_health_that_a_host_does_not_read_are_few(
    serve: Any, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_streams, "_MOST_OF_A_HOST", 3)
    server = await serve()
    path = "/grpc.health.v1.Health/Check"
    check = call(server).channel.unary_unary(path)
    async with windowless(server.address) as writer:
        for number in range(3):
            call_without_window(writer, 2 * number + 1, path)
        await until(lambda: server._runtime_streams._answers.total() == 3)
        with pytest.raises(grpc.RpcError) as failed:
            await check(b"", timeout=30)
        assert errors.from_rpc_error(failed.value).reason == "OVERLOADED"
    await until(lambda: server._runtime_streams._answers.total() == 0)
    await check(b"", timeout=30)
