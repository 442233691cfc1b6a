"""Measure what HTTP costs beside gRPC: the same asks to a mesh with stand-in models, by both ways in turn."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final
from urllib.parse import urlsplit

import grpc
from google.protobuf import json_format

from benchmarks import load
from benchmarks.mesh import CALLERS, COLLECTION, ingest, stand_in_mesh
from evenmesh.local_mesh import MeshState
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as orch
from evenmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as orch_grpc
from evenmesh_mesh import MeshSettings, launch, stop
from evenmesh_mesh.health import http_url
from evenmesh_mesh.services import GATEWAY, SERVICES

_FEW: Final = 4
"""Callers of the bundled models, which keep the cores busy."""
HEADING: Final = "HTTP beside gRPC"
_GRPC, _REST, _CHAT = "gRPC", "REST, server-sent events", "OpenAI's chat completions, streamed"
_ASK: Final = "/v1/evenmesh.orchestrator.v1.OrchestratorService/Ask"

Ask = Callable[[], Awaitable[float]]
"""Makes an ask to its end and returns the time to its first message. Seconds."""


@dataclass(frozen=True)
class Way:
    """What was measured of one way in, medians over the rounds.

    Attributes:
        p50_ms: of whole asks, one caller. Milliseconds.
        first_ms: median time to the first message, one caller. Milliseconds.
        per_s: asks per second of all callers.
        cpu_ms: CPU of the gateway for an ask, one caller. Milliseconds.
    """

    p50_ms: float
    first_ms: float
    per_s: float
    cpu_ms: float


@dataclass(frozen=True)
class Measured:
    """What was measured of each way: with models that answer at once, and with the bundled ones."""

    at_once: Mapping[str, Way]
    bundled: Mapping[str, Way]


def measure(*, rounds: int = 7, count: int = 100, flows: int = 300) -> Measured:
    """Return what was measured of each way; with the bundled models by fewer asks."""
    with (
        tempfile.TemporaryDirectory(prefix="evenmesh-bench-") as home,
        stand_in_mesh(Path(home), "benchmarks.stand_in_generator", {}, more=(GATEWAY,)) as state,
    ):
        at_once = _ways(state, CALLERS, rounds, count, flows)
    with tempfile.TemporaryDirectory(prefix="evenmesh-bench-") as home:
        state = launch(MeshSettings(Path(home), port=0, services=(*SERVICES, GATEWAY)))
        try:
            return Measured(at_once, _ways(state, _FEW, (rounds + 1) // 2, count // 10, flows // 10))
        finally:
            stop(Path(home))


def section(found: Measured) -> str:
    """Return what was measured as a section of docs/science/benchmarks.md."""
    return f"""The same ask (64 tokens streamed, one observation) to a mesh of five processes and a gateway,
whose models answer at once, by each way in turn: p50 and first message with one caller, asks per second
with {CALLERS}, and CPU of the gateway for an ask of one, medians of the rounds; in brackets beside gRPC.
Callers share the cores and keep connections.
Targets: p50 ≤ 1.1, first message ≤ +3 ms, asks per second ≥ 0.7.

{_table(found.at_once)}

The same with the bundled models, which rank 20 passages and read 5, and {_FEW} callers:

{_table(found.bundled)}"""


def _ways(state: MeshState, callers: int, rounds: int, count: int, flows: int) -> Mapping[str, Way]:
    asyncio.run(ingest(state.addresses["retriever"]))
    url, pid = http_url(state.services[GATEWAY.name].address), state.services[GATEWAY.name].pid
    if pid is None:
        raise RuntimeError("the gateway does not run here: its CPU cannot be measured")
    return asyncio.run(_measured(state.addresses["orchestrator"], url, pid, callers, rounds, count, flows))


def _table(ways: Mapping[str, Way]) -> str:
    base = ways[_GRPC]
    rows = "\n".join(
        f"| {name} | {way.p50_ms:.2f} ms ({way.p50_ms / base.p50_ms:.2f}) "
        f"| {way.first_ms:.2f} ms ({way.first_ms - base.first_ms:+.2f} ms) "
        f"| {way.per_s:.1f} ({way.per_s / base.per_s:.2f}) | {way.cpu_ms:.1f} ms |"
        for name, way in ways.items()
    )
    return f"""| | p50 | first message | asks per second | the gateway's CPU |
|---|---|---|---|---|
{rows}"""


class _Connection:
    """Asks over one connection of HTTP/1.1.

    Args:
        url: of the gateway.
        path: of the request.
        body: of the request, JSON.
        end: what the last event has.
    """

    def __init__(self, url: str, path: str, body: bytes, end: bytes) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 0)
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        self._request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
        self._end = end
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self) -> float:
        """Make an ask to its end; return the time to its first event.

        Raises:
            RuntimeError: it is refused, or its last event is another one.
        """
        if self._streams is None or self._streams[0].at_eof():  # idle for longer than the gateway waits
            self._streams = await asyncio.open_connection(*self._address)
        reader, writer = self._streams
        began = time.perf_counter()
        writer.write(self._request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(head.decode(errors="replace"))
        last, first_s = b"", 0.0
        while size := int(await reader.readline(), 16):
            piece = (await reader.readexactly(size + 2))[:-2]
            first_s = first_s or time.perf_counter() - began
            last = piece
        await reader.readline()
        if self._end not in last:
            raise RuntimeError(f"the last event is {last[:200]!r}")
        return first_s

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def _measured(
    target: str, url: str, pid: int, callers: int, rounds: int, count: int, flows: int
) -> Mapping[str, Way]:
    wanted = load.request(COLLECTION)
    rest = json_format.MessageToJson(wanted).encode()
    options = json_format.MessageToDict(wanted)
    del options["question"], options["collection"]
    said = [{"role": "user", "content": wanted.question}]
    chat = {"model": f"evenmesh/{COLLECTION}", "messages": said, "stream": True, "evenmesh": options}
    async with grpc.aio.insecure_channel(target) as channel:
        stub = orch_grpc.OrchestratorServiceStub(channel)
        lines = {
            _REST: [_Connection(url, _ASK, rest, b"event: end") for _ in range(callers)],
            _CHAT: [
                _Connection(url, "/v1/chat/completions", json.dumps(chat).encode(), b"[DONE]")
                for _ in range(callers)
            ],
        }
        ways: dict[str, list[Ask]] = {
            _GRPC: [lambda: _asked(stub, wanted)] * callers,
            **{name: [one.ask for one in some] for name, some in lines.items()},
        }
        try:
            seen: dict[str, list[Way]] = {name: [] for name in ways}
            await ways[_GRPC][0]()  # models are ready
            for asks in ways.values():
                await _throughput(asks, flows // 3)
            for turn in range(rounds):
                for name in list(ways)[:: -1 if turn % 2 else 1]:
                    before = load.cpu_s(pid)
                    alone = [await _timed(ways[name][0]) for _ in range(count)]
                    spent_s = load.cpu_s(pid) - before
                    per_s = await _throughput(ways[name], flows)
                    seen[name].append(
                        Way(
                            1e3 * median(whole for whole, _ in alone),
                            1e3 * median(first for _, first in alone),
                            per_s,
                            1e3 * spent_s / count,
                        )
                    )
        finally:
            for some in lines.values():
                for one in some:
                    one.close()
    return {
        name: Way(
            median(one.p50_ms for one in rounds_),
            median(one.first_ms for one in rounds_),
            median(one.per_s for one in rounds_),
            median(one.cpu_ms for one in rounds_),
        )
        for name, rounds_ in seen.items()
    }


async def _asked(stub: orch_grpc.OrchestratorServiceAsyncStub, wanted: orch.AskRequest) -> float:
    began = time.perf_counter()
    first_s, last = 0.0, ""
    async for message in stub.Ask(wanted, timeout=60):
        first_s = first_s or time.perf_counter() - began
        last = message.WhichOneof("event") or ""
    if last != "done":
        raise RuntimeError(f"an ask ended with {last!r} instead of done")
    return first_s


async def _timed(ask: Ask) -> tuple[float, float]:
    """Return the time of an ask, and that to its first message. Seconds."""
    began = time.perf_counter()
    first_s = await ask()
    return time.perf_counter() - began, first_s


async def _throughput(asks: list[Ask], count: int) -> float:
    """Return asks per second with all callers under way at any time."""
    left = iter(range(count))

    async def call(ask: Ask) -> None:
        for _ in left:
            await ask()

    began = time.perf_counter()
    await asyncio.gather(*map(call, asks))
    return count / (time.perf_counter() - began)
