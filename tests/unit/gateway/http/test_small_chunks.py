"""What arrives in very small pieces holds up nobody else, and holds no connection for ever."""

from __future__ import annotations

import asyncio
from collections import Counter

import h11
import httpx
import pytest

from evenmesh_gateway.http import server as http_server
from tests.unit.gateway.conftest import Open

CHUNK = b"1\r\n \r\n"
HEAD = b"POST /v1/%s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
RETRIEVE = b"evenmesh.retriever.v1.RetrieverService/Retrieve"


async def connected(gateway: httpx.AsyncClient) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection."""
    return await asyncio.open_connection(gateway.base_url.host, gateway.base_url.port)


@pytest.mark.parametrize("connections", [1, 5])
@pytest.mark.parametrize("path", [RETRIEVE, b"nothing"], ids=["of a request", "after the reply"])
async def test_others_get_their_turn_after_a_few_chunks(
    gateway: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: bytes, connections: int
) -> None:
    """Tiny chunks cost 25 microseconds each: a quarter of a megabyte of them stopped the loop for a second."""
    passes: Counter[int] = Counter()
    done = 0
    next_event = h11.Connection.next_event

    def counted(self: h11.Connection) -> object:
        if self.their_role is h11.CLIENT:
            passes[done] += 1
        return next_event(self)

    async def count_passes() -> None:
        nonlocal done
        while True:
            await asyncio.sleep(0)
            done += 1

    opened = [await connected(gateway) for _ in range(connections)]
    for reader, writer in opened:
        writer.write(HEAD % path)
        if path != RETRIEVE:
            await reader.readuntil(b"\r\n\r\n")
    body = b'f\r\n{"query": "oil"\r\n' + CHUNK * 3000 + b"1\r\n}\r\n0\r\n\r\n"
    monkeypatch.setattr(h11.Connection, "next_event", counted)
    counting = asyncio.create_task(count_passes())
    for _, writer in opened:
        writer.write(body)
    if path == RETRIEVE:
        for reader, _ in opened:
            assert b" 200 " in await reader.readline()
    else:
        async with asyncio.timeout(60):
            while passes.total() < 3000 * connections:
                await asyncio.sleep(0.01)
    counting.cancel()
    for _, writer in opened:
        writer.close()
    assert passes.total() >= 3000 * connections
    # A turn, and what others of the connections have just sent or ended.
    assert max(passes.values()) <= (connections + 1) * (http_server._EVENTS + 3)


async def test_a_body_that_goes_on_after_its_reply_ends_with_the_time_of_a_head(open_gateway: Open) -> None:
    gateway = await open_gateway(head_s=0.2)
    reader, writer = await connected(gateway)
    writer.write(HEAD % b"nothing")
    assert b" 404 " in await reader.readline()
    with pytest.raises(ConnectionError):
        async with asyncio.timeout(60):
            while True:
                writer.write(CHUNK)
                await writer.drain()
                await asyncio.sleep(0.02)


async def test_a_request_after_a_refused_body_is_answered(gateway: httpx.AsyncClient) -> None:
    reader, writer = await connected(gateway)
    writer.write(HEAD % b"nothing" + CHUNK * 1000 + b"0\r\n\r\n")
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    said = await reader.read()
    writer.close()
    assert said.count(b"HTTP/1.1 ") == 2
    assert b"HTTP/1.1 200 " in said
