"""Replies that their clients do not read hold a bounded memory, and no connection for ever."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from evenmesh_gateway.http import server as http_server
from evenmesh_kit.security.keys import KeyEntry, add_entry, new_key
from tests.support.scripted import ScriptedMesh
from tests.unit.gateway.conftest import Open

SERVICE = "evenmesh.retriever.v1.RetrieverService/Retrieve"
ASK = "evenmesh.orchestrator.v1.OrchestratorService/Ask"
MIB = 2**20
REPLY = 7 * MIB
"""More than the system buffers of a connection."""
TARGETS = pytest.mark.parametrize("path", [f"/v1/{SERVICE}", f"/{SERVICE}"], ids=["rest", "connect"])


@contextmanager
def unread(
    gateway: httpx.AsyncClient, path: str, number: int, key: str = ""
) -> Iterator[list[socket.socket]]:
    """Make requests on connections of which nothing is read."""
    body = b'{"query": "oil"}'
    credential = f"authorization: Bearer {key}\r\n" if key else ""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{credential}"
    opened = []
    for _ in range(number):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.connect((gateway.base_url.host, gateway.base_url.port))
        one.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        opened.append(one)
    try:
        yield opened
    finally:
        for one in opened:
            one.close()


async def _until(gateway: httpx.AsyncClient, path: str, status: int, key: str = "") -> httpx.Response:
    headers = {"accept-encoding": "identity", **({"authorization": f"Bearer {key}"} if key else {})}
    async with asyncio.timeout(60):
        while True:
            reply = await gateway.post(path, json={"query": "oil"}, headers=headers)
            if reply.status_code == status:
                return reply
            await asyncio.sleep(0.05)


@TARGETS
async def test_replies_that_nobody_reads_share_a_bound(
    open_gateway: Open, scripted: ScriptedMesh, path: str
) -> None:
    scripted.retriever.text = "x" * REPLY
    gateway = await open_gateway(max_reply_bytes=16 * MIB, queue_s=0.05)
    with unread(gateway, path, 2):
        assert "bytes of replies" in (await _until(gateway, path, 429)).text
        assert (await gateway.get("/openapi.json")).status_code == 200, "what all may read takes no memory"
    assert len((await _until(gateway, path, 200)).content) > REPLY


@TARGETS
async def test_a_tenants_unread_replies_leave_room_for_those_of_others(
    open_gateway: Open, scripted: ScriptedMesh, tmp_path: Path, path: str
) -> None:
    file, keys = tmp_path / "keys.toml", {}
    for tenant in ("acme", "other"):
        keys[tenant], digest = new_key()
        add_entry(file, KeyEntry(name=tenant, sha256=digest, tenant=tenant, roles=["ask"]))
    scripted.retriever.text = "x" * REPLY
    gateway = await open_gateway(
        api_keys=file, max_reply_bytes=16 * MIB, tenant_share=0.5, queue_s=0.05, documents=False
    )
    with unread(gateway, path, 1, keys["acme"]):
        await _until(gateway, path, 429, keys["acme"])
        reply = await gateway.post(
            path, json={"query": "oil"}, headers={"authorization": f"Bearer {keys['other']}"}
        )
        assert reply.status_code == 200, reply.text
        assert len(reply.content) > REPLY


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends such connections")
async def test_a_client_that_reads_nothing_is_disconnected(
    open_gateway: Open, scripted: ScriptedMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "_TAKEN_S", 1.0)
    scripted.retriever.text = "x" * REPLY
    gateway = await open_gateway()
    connections = gateway.server._server.server_state.connections  # type: ignore[attr-defined]
    with unread(gateway, f"/v1/{SERVICE}", 2):
        async with asyncio.timeout(60):
            while len(connections) < 2:
                await asyncio.sleep(0.01)
            while connections:
                await asyncio.sleep(0.05)


async def test_the_head_of_a_stream_does_not_wait_for_an_event(open_gateway: Open) -> None:
    """An agent's stream may be silent for as long as it is open."""
    gateway = await open_gateway()
    headers = {"accept": "text/event-stream"}
    async with asyncio.timeout(30), gateway.stream("GET", "/mcp", headers=headers) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")


async def test_a_large_event_that_does_not_fit_ends_its_stream(
    open_gateway: Open, scripted: ScriptedMesh
) -> None:
    scripted.retriever.text = "x" * REPLY
    scripted.orchestrator.events[0].retrieved.passages[0].text = "y" * (10 * MIB)
    gateway = await open_gateway(max_reply_bytes=16 * MIB, queue_s=0.05)
    with unread(gateway, f"/v1/{SERVICE}", 2):
        await _until(gateway, f"/v1/{SERVICE}", 429)
        with pytest.raises(httpx.RemoteProtocolError):
            await gateway.post(f"/v1/{ASK}", json={"question": "oil?"})
    assert "y" * 1000 in (await gateway.post(f"/v1/{ASK}", json={"question": "oil?"})).text
