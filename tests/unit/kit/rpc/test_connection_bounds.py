"""Connections, handshakes and the calls on a connection are bounded, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from pathlib import Path
from typing import Any

import grpc
import pytest

from evenmesh.common.v1.common_pb2 import ItemError
from evenmesh_kit import settings as settings_module
from evenmesh_kit.settings import ServiceSettings

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""What a caller sends first: the preface and empty settings."""


async def closed(address: str, sent: bytes = b"") -> None:
    """Open a bare connection, and return once the server has closed it."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    try:
        while await reader.read(2**16):
            pass
    finally:
        writer.close()


async def test_a_connection_without_a_handshake_ends(
    serve: Any, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_module, "_HANDSHAKE_S", 0.5)
    server = await serve()
    async with asyncio.timeout(30):
        await asyncio.gather(*(closed(server.address) for _ in range(20)))
    assert await call(server)("unary", "x") == ["x"]


async def test_a_connection_without_a_call_ends(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_module, "_IDLE_S", 0.5)
    server = await serve()
    async with asyncio.timeout(30):
        await closed(server.address, PREFACE)


async def test_more_connections_than_allowed_are_closed_at_once(serve: Any, call: Any) -> None:
    server = await serve(settings={"max_connections": 16})
    host, _, port = server.address.rpartition(":")
    echo = call(server)
    assert await echo("unary", "before") == ["before"]
    held = [await asyncio.open_connection(host, int(port)) for _ in range(15)]
    async with asyncio.timeout(30):
        for _, writer in held:
            writer.write(PREFACE)
        for reader, _ in held:
            assert await reader.read(1), "the server greets a connection that it keeps"
        await closed(server.address, PREFACE)
        assert await echo("unary", "during") == ["during"], "a connection that is there goes on"
        for _, writer in held:
            writer.close()
        again = call(server)
        answers: list[str] = []
        while not answers:  # the server notices soon that they are gone
            with contextlib.suppress(grpc.aio.AioRpcError):
                answers = await again("unary", "after")
            await asyncio.sleep(0.05)
        assert answers == ["after"]


async def test_more_calls_on_a_connection_than_allowed_do_not_run(serve: Any, call: Any) -> None:
    running, most = 0, 0
    go = asyncio.Event()

    async def count(request: ItemError, context: Any) -> ItemError:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go.wait()
        running -= 1
        return request

    server = await serve(settings={"max_connection_streams": 3}, unary=count)
    echo = call(server)
    async with asyncio.timeout(30):
        calls = [asyncio.create_task(echo("unary")) for _ in range(9)]
        while running < 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        go.set()
        ends = await asyncio.gather(*calls, return_exceptions=True)
    # A channel lets them wait once it knows the bound; what it has sent before is refused.
    refused = [end for end in ends if isinstance(end, BaseException)]
    assert all(
        isinstance(end, grpc.aio.AioRpcError) and end.code() is grpc.StatusCode.UNAVAILABLE for end in refused
    )
    assert most == 3


def test_connections_leave_half_of_the_descriptors_to_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = ServiceSettings(home=tmp_path, max_connections=1000)
    for descriptors, most in ((300, 150), (10_000, 1000), (resource.RLIM_INFINITY, 1000)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, n=descriptors: (n, n))
        assert dict(settings.connection_bounds)["grpc.max_allowed_incoming_connections"] == most
