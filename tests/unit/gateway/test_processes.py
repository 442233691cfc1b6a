"""Gateways as processes: a rollout of them, and strangers who flood one."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import httpx
import pytest

from evenmesh_kit.security.keys import KeyEntry, add_entry, new_key
from tests.support.gateway_process import GatewayProcess
from tests.support.scripted import ScriptedMesh
from tests.support.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

CHAT = "/v1/chat/completions"
SAID = {"model": "evenmesh", "messages": [{"role": "user", "content": "How often?"}], "stream": True}
STREAMS = 50
MIB = 2**20
MEMORY = 64 * MIB
"""What bodies may take together."""

PROCESSES: Final = 200
"""Of which five crashed, in the mean, before gRPC's handlers of forks were off."""
SERVICE: Final = f"""
import asyncio
import sys

import evenmesh_gateway  # before gRPC, as in its process
import grpc

from evenmesh_kit.process.serving import run


async def echo(request, context):
    await asyncio.sleep(0.01)
    return request


async def main():
    methods = {{"Echo": grpc.unary_unary_rpc_method_handler(echo)}}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    own = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{{port}}", options=own) for _ in range(3)]

    async def call(channel):
        while True:
            await channel.unary_unary("/test/Echo")(b"x")
            await asyncio.sleep(0.02)

    calling = [asyncio.create_task(call(one)) for one in channels]
    ended = []
    for _ in range({PROCESSES}):
        process = await asyncio.create_subprocess_exec("/bin/true")
        ended.append(await process.wait())
    for one in calling:
        one.cancel()
    await asyncio.gather(*calling, return_exceptions=True)
    await server.stop(0)
    print(sorted(set(ended)))


sys.exit(run(main))
"""


def listening(port: int) -> int:
    """Return how many sockets of this machine accept connections on a port."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A" for line in lines)


async def streamed(client: httpx.AsyncClient, begun: asyncio.Semaphore | None = None) -> str:
    """Ask; return what the stream says, of which ``begun`` hears the first chunk."""
    text = ""
    async with client.stream("POST", CHAT, json=SAID) as reply:
        assert reply.status_code == 200
        async for line in reply.aiter_lines():
            if begun is not None:
                begun.release()
                begun = None
            if line == "data: [DONE]":
                return text
            if line.startswith("data: "):
                for choice in json.loads(line[6:])["choices"]:
                    text += choice["delta"].get("content") or ""
    raise AssertionError("the stream was cut")


async def test_a_rollout_cuts_no_stream(scripted: ScriptedMesh, tmp_path: Path) -> None:
    """Fifty streams begin at the old gateway; the new one takes its port, and those that come meanwhile."""
    scripted.orchestrator.release = threading.Event()
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(("127.0.0.1", 0))
    port = reserved.getsockname()[1]
    shared = {"EVENMESH_GATEWAY_PORT": str(port), "EVENMESH_GATEWAY_SHARE_PORT": "true"}
    folders = [tmp_path / name for name in ("old", "new")]
    for folder in folders:
        folder.mkdir()
    unlimited = httpx.Limits(max_connections=None)
    begun = asyncio.Semaphore(0)
    with reserved, GatewayProcess(folders[0], scripted.addresses, **shared) as old:
        async with (
            httpx.AsyncClient(base_url=old.url, timeout=120, limits=unlimited) as before,
            httpx.AsyncClient(base_url=old.url, timeout=120, limits=unlimited) as after,
        ):
            running = [asyncio.create_task(streamed(before, begun)) for _ in range(STREAMS)]
            for _ in running:
                await asyncio.wait_for(begun.acquire(), 60)
            with GatewayProcess(folders[1], scripted.addresses, **shared):
                old.process.send_signal(signal.SIGTERM)
                await until(lambda: listening(port) <= 1)
                running += [asyncio.create_task(streamed(after, begun)) for _ in range(STREAMS // 2)]
                for _ in range(STREAMS // 2):
                    await asyncio.wait_for(begun.acquire(), 60)
                assert old.process.poll() is None, "its streams are open"
                scripted.orchestrator.release.set()
                assert set(await asyncio.gather(*running)) == {"every 200 kilometres"}
                assert await asyncio.to_thread(old.process.wait, 60) == 0


async def attacked(address: str, head: str, *pieces: bytes) -> bytes:
    """Send a request as far as it is read; return the first line of the response."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(head.encode())
        with suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                if reader.at_eof():
                    break
        with suppress(ConnectionError):
            return await reader.readline()
        return b""
    finally:
        writer.close()


def head_of(path: str, size: int, key: str = "") -> str:
    """Return the head of a request with a body of ``size`` bytes."""
    credential = f"authorization: Bearer {key}\r\n" if key else ""
    return (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{credential}"
        f"content-length: {size}\r\n\r\n"
    )


def memory_of(process_id: int, name: str) -> int:
    """Return a line of a process's status. Bytes."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


async def pulses(url: str) -> AsyncIterator[int]:
    """Yield the status of the gateway's health, again and again.

    This process may be too busy to send a head within the time that the gateway waits for one: it asks again.
    """
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        while True:
            with suppress(httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                yield (await client.get("/healthz")).status_code
            await asyncio.sleep(0.02)


async def test_a_flood_takes_bounded_memory_and_health_answers(
    scripted: ScriptedMesh, tmp_path: Path
) -> None:
    key, digest = new_key()
    keys = tmp_path / "keys.toml"
    add_entry(keys, KeyEntry(name="ann", sha256=digest, tenant="acme", roles=["ask"]))
    settings = {
        "EVENMESH_API_KEYS": str(keys),
        "EVENMESH_GATEWAY_MAX_DECODED_BYTES": str(MEMORY),
        "EVENMESH_GATEWAY_HEAD_S": "1",
    }
    chunk, deep = b"x" * MIB, b"[" * 100_000
    rest = "/v1/evenmesh.retriever.v1.RetrieverService/Retrieve"
    with GatewayProcess(tmp_path, scripted.addresses, **settings) as gateway:
        seen: set[int] = set()

        async def watch() -> None:
            async for status in pulses(gateway.url):
                seen.add(status)

        watching = asyncio.create_task(watch())
        try:
            pid = gateway.process.pid
            before = memory_of(pid, "VmRSS")

            async def flood(count: int, head: str, *pieces: bytes) -> set[bytes]:
                found = await asyncio.gather(
                    *(attacked(gateway.address, head, *pieces) for _ in range(count))
                )
                return {line.split()[1] for line in found if line}

            # Strangers: large bodies, heads that never end, large heads.
            assert await flood(50, head_of(rest, 24 * MIB), *[chunk] * 24) <= {b"401"}
            assert await flood(50, head_of(CHAT, 2**40), chunk) <= {b"401", b"413"}
            assert await flood(50, "POST / HTTP/1.1\r\nx-slow: ") <= {b"400", b"408"}
            assert await flood(20, "GET / HTTP/1.1\r\nx: " + "y" * MIB + "\r\n\r\n") <= {b"400", b"431"}
            # One who is known: deep JSON, and more large bodies at once than there is memory for.
            assert await flood(4, head_of(rest, len(deep), key), deep) == {b"400"}
            assert await flood(40, head_of(rest, 8 * MIB, key), *[chunk] * 8) <= {b"400", b"429"}
            mine = {"authorization": f"Bearer {key}"}
            async with httpx.AsyncClient(base_url=gateway.url, timeout=60, headers=mine) as client:
                assert await streamed(client) == "every 200 kilometres"
            grown = memory_of(pid, "VmHWM") - before
            assert grown < 4 * MEMORY, f"{grown / MIB:.0f} MiB"
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        assert seen == {200}
        assert gateway.process.poll() is None


def test_processes_started_beside_calls_begin() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVICE], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.stdout.strip(), done.returncode) == ("[0]", 0), done.stderr
