"""Scaling out on one machine: more processes behind round_robin, one of them killed, one of them new.

Two kinds of processes: the bundled generator, which computes and has to share the cores; and the real
reranker service around a scorer that waits instead, as one does whose model runs on a GPU of its own, which
shows the balancing alone. ``python -m benchmarks.scale_out`` measures and prints.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks import shapes
from meshkit import logs
from meshkit.admission import Admission
from meshkit.channel import connect
from meshkit.compute import ComputePool
from meshkit.server import Registration, run, serve
from meshkit.settings import load
from meshkit.telemetry import Telemetry
from ragmesh.bench.arrivals import poisson
from ragmesh.generator.v1 import generator_service_pb2 as generator_pb
from ragmesh.generator.v1.generator_service_pb2_grpc import GeneratorServiceStub
from ragmesh.reranker.v1 import reranker_service_pb2 as reranker_pb
from ragmesh.reranker.v1.reranker_service_pb2_grpc import (
    RerankerServiceStub,
    add_RerankerServiceServicer_to_server,
)
from services.reranker.domain import Agent, Best, LearnedModel, Passage, Scores
from services.reranker.engine import Reranking
from services.reranker.servicer import RERANKER, RerankerServicer
from services.reranker.settings import RerankerSettings

ROOT = str(Path(__file__).resolve().parents[1])
HEADING = "Scaling out on one machine"
COUNTS = (1, 2, 4)
SECONDS = 15.0
CALLERS = 8
"""Callers for each process."""
WAIT_S, SLOTS = 0.1, 2
"""A waiting process has so many calls at a time, each for so long."""
LOAD = 0.5
"""Of what three of the waiting processes can do together: the rate while one of four is killed."""
AGE_S = 10.0
"""After so long a server closes a connection, and the client asks DNS again."""
START_S = 120.0
HOST = "replicas.ragmesh.test"
GENERATOR = "ragmesh.generator.v1.GeneratorService"
_NAME_VARIABLE = "RAGMESH_SCALE_OUT_NAME"

_Ask = Callable[[grpc.aio.Channel], Awaitable[str]]


@dataclass(frozen=True)
class Throughput:
    """Calls per second of one kind of processes, by how many they are, and the share of the busiest."""

    kind: str
    processes: int
    per_s: float
    ratio: float
    busiest: float


@dataclass(frozen=True)
class Killed:
    """What became of calls while one process of four was killed (``kill -9``).

    Attributes:
        calls: calls that were made.
        lost: calls that failed.
        slowest_ms: the longest latency within two seconds of the kill.
        usual_ms: the longest before.
    """

    calls: int
    lost: int
    slowest_ms: float
    usual_ms: float


@dataclass(frozen=True)
class Found:
    """All that was measured; seconds from when a new process serves to its first call."""

    throughputs: Sequence[Throughput]
    killed: Killed
    listed_s: float
    resolved_s: float


def measure(*, seconds: float = SECONDS, computing: bool = True) -> Found:
    """Measures all of it.

    Args:
        seconds: length of each part.
        computing: whether processes that compute are measured, too; they take longest to start.
    """
    return asyncio.run(_measure(seconds, computing))


def section(found: Found) -> str:
    """All of it as a section of docs/benchmarks.md."""
    rows = "\n".join(
        f"| {one.kind} | {one.processes} | {one.per_s:.1f} | {one.ratio:.2f} | {100 * one.busiest:.0f} % |"
        for one in found.throughputs
    )
    killed = found.killed
    return f"""Processes behind client-side `round_robin`, all on this machine's {os.cpu_count()} cores, for
each of them {CALLERS} callers who ask again at once. `waits`: the reranker service around a scorer that waits
{1e3 * WAIT_S:.0f} ms, {SLOTS} at a time, and computes next to nothing; `computes`: the bundled generator with
one thread, whose processes share the cores: more of them than cores add nothing.

| processes | | calls/s | ratio | share of the busiest process |
|---|---|---|---|---|
{rows}

One of four waiting processes killed (`kill -9`) at {100 * LOAD:.0f} % of what the other three can do:
{killed.lost} of {killed.calls:,} calls lost; the slowest call around the kill took
{killed.slowest_ms:.0f} ms, before it {killed.usual_ms:.0f} ms. A new process gets its first call
{found.listed_s:.1f} s after it serves if its address was listed before (`ipv4:A,B,C`), and
{found.resolved_s:.1f} s after it serves and DNS knows it if servers close connections after {AGE_S:.0f} s
(`RAGMESH_<SERVICE>_MAX_CONNECTION_AGE_S`; target ≤ 30 s)."""


class Waiting:
    """A scorer that waits, some calls at a time, and says which process it is in."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._slots = asyncio.Semaphore(SLOTS)

    async def score(
        self, query: str, passages: Sequence[Passage], agent: Agent, *, best: Best | None = None
    ) -> Scores:
        """Waits for its turn, and then as long as it takes."""
        async with self._slots:
            await asyncio.sleep(WAIT_S)
        return Scores(tuple(1 / rank for rank in range(1, len(passages) + 1)), self._name)

    def models(self) -> list[LearnedModel]:
        """None that learn."""
        return []


class _Service:
    """Lifecycle of the service around the scorer that waits."""

    def __init__(self, settings: RerankerSettings) -> None:
        self._codec_pool = ComputePool(1, "reranker-codec")
        self._servicer = RerankerServicer(Admission(settings.max_work, "pairs"), self._codec_pool)
        self.registrations = [Registration(add_RerankerServiceServicer_to_server, self._servicer, RERANKER)]

    async def start(self) -> None:
        waiting = Waiting(os.environ[_NAME_VARIABLE])
        self._servicer.open(Reranking({"rankrag": waiting}, "rankrag"))

    async def stop(self) -> None:
        self._codec_pool.close()


async def _serve() -> None:
    settings = load(RerankerSettings)
    logs.configure("reranker", settings)
    service = _Service(settings)
    telemetry = Telemetry.from_settings("reranker", settings)
    await serve("reranker", settings, service.registrations, service, telemetry=telemetry)


async def _measure(seconds: float, computing: bool) -> Found:
    throughputs = []
    kinds = [("waits", _reranked, RERANKER, "Rerank"), ("computes", _generated, GENERATOR, "Generate")]
    for kind, ask, service, method in kinds if computing else kinds[:1]:
        alone = 0.0
        for count in COUNTS:
            async with _processes(count, computing=kind == "computes") as processes:
                target = _listed([one.address for one in processes])
                async with connect(target, service=service, idempotent=[method]) as channel:
                    served = await _closed(channel, ask, CALLERS * count, seconds)
                    work = [_cpu_s(one.process.pid) for one in processes]
            per_s = sum(served.values()) / seconds
            alone = alone or per_s
            # A generator does not say which process it is: there the processor's time stands for calls.
            shares = list(served.values()) if kind == "waits" else work
            throughputs.append(
                Throughput(kind, count, per_s, per_s / alone, max(shares) / max(sum(shares), 1e-9))
            )
    return Found(throughputs, await _kill(seconds), await _added_to_list(), await _added_to_dns())


async def _reranked(channel: grpc.aio.Channel) -> str:
    passages = shapes.passages()[: shapes.SHOWN]
    request = reranker_pb.RerankRequest(query=shapes.QUESTION, passages=passages)
    reply = await RerankerServiceStub(channel).Rerank(request, timeout=60)
    return str(reply.model_version)


async def _generated(channel: grpc.aio.Channel) -> str:
    passages = shapes.passages()[: shapes.SHOWN]
    # No two are the same: what is computed once is kept.
    question = f"{shapes.QUESTION} {time.monotonic_ns()}"
    request = generator_pb.GenerateRequest(question=question, passages=passages)
    request.decoding.max_new_tokens = 8
    last = ""
    async for message in GeneratorServiceStub(channel).Generate(request, timeout=60):
        last = message.WhichOneof("part") or ""
    if last != "answer":
        raise RuntimeError(f"a stream ended with {last!r}")
    return "generator"


async def _closed(channel: grpc.aio.Channel, ask: _Ask, callers: int, seconds: float) -> Counter[str]:
    """Calls that ended within so many seconds, by process."""
    served: Counter[str] = Counter()
    await asyncio.gather(*(ask(channel) for _ in range(callers)))
    ends = time.monotonic() + seconds

    async def call() -> None:
        while time.monotonic() < ends:
            name = await ask(channel)
            if time.monotonic() < ends:
                served[name] += 1

    await asyncio.gather(*(call() for _ in range(callers)))
    return served


async def _kill(seconds: float) -> Killed:
    """Kills one process of four under load."""
    rate = LOAD * 3 * SLOTS / WAIT_S
    due = poisson(rate, 2 * seconds, 0)
    ended: list[tuple[float, float, bool]] = []
    async with _processes(4) as processes:
        target = _listed([one.address for one in processes])
        async with connect(target, service=RERANKER, idempotent=["Rerank"]) as channel:
            await asyncio.gather(*(_reranked(channel) for _ in range(8)))
            began = time.monotonic()

            async def call(at: float) -> None:
                try:
                    await _reranked(channel)
                    ok = True
                except grpc.aio.AioRpcError:
                    ok = False
                ended.append((at, 1e3 * (time.monotonic() - began - at), ok))

            async def kill() -> None:
                await asyncio.sleep(seconds)
                processes[0].process.kill()

            async with asyncio.TaskGroup() as group:
                group.create_task(kill())
                for at in due.tolist():
                    await asyncio.sleep(max(0.0, at - (time.monotonic() - began)))
                    group.create_task(call(at))
    around = [taken for at, taken, _ in ended if seconds - 1 <= at <= seconds + 2]
    before = [taken for at, taken, _ in ended if at < seconds - 1]
    lost = sum(not ok for _, _, ok in ended)
    return Killed(len(ended), lost, max(around), max(before))


async def _added_to_list() -> float:
    """Seconds until a process that was listed from the beginning, and begins to serve later, gets a call."""
    port = _free_port(3)
    hosts = [f"127.0.0.{1 + place}" for place in range(3)]
    async with _processes(2, port=port):
        target = _listed([f"{host}:{port}" for host in hosts])
        async with connect(target, service=RERANKER, idempotent=["Rerank"]) as channel:
            return await _until_served(channel, 2, port)


async def _added_to_dns() -> float:
    """Seconds until a process that DNS learns of gets a call: a headless Service with one pod more."""
    port = _free_port(3)
    async with _processes(2, port=port, age_s=AGE_S), _dns(["127.0.0.1", "127.0.0.2"]) as names:
        target = f"dns://127.0.0.1:{names.port}/{HOST}:{port}"
        async with connect(target, service=RERANKER, idempotent=["Rerank"]) as channel:
            return await _until_served(channel, 2, port, names, age_s=AGE_S)


async def _until_served(
    channel: grpc.aio.Channel,
    place: int,
    port: int,
    names: _Names | None = None,
    *,
    age_s: float | None = None,
) -> float:
    """Seconds from when a new process serves (and DNS knows it) to its first call."""
    asked = asyncio.ensure_future(_ask_on(channel, f"process-{place}"))
    await asyncio.sleep(1.0)
    async with _processes(1, port=port, first=place, age_s=age_s):
        if names is not None:
            names.addresses = [*names.addresses, f"127.0.0.{1 + place}"]
        began = time.monotonic()
        try:
            return await asyncio.wait_for(asked, START_S) - began
        except TimeoutError:
            return float("inf")


async def _ask_on(channel: grpc.aio.Channel, wanted: str) -> float:
    """Asks again and again; when the process that is waited for first answered."""
    while True:
        if await _reranked(channel) == wanted:
            return time.monotonic()
        await asyncio.sleep(0.02)


@dataclass(frozen=True)
class _Process:
    address: str
    process: asyncio.subprocess.Process


@contextlib.asynccontextmanager
async def _processes(
    count: int,
    *,
    computing: bool = False,
    port: int = 0,
    first: int = 0,
    age_s: float | None = None,
) -> AsyncIterator[list[_Process]]:
    """Processes that serve; each has an address of the loopback network of its own, as pods have."""
    started: list[_Process] = []
    prefix = "RAGMESH_GENERATOR" if computing else "RAGMESH_RERANKER"
    command = ["-m", "services.generator"] if computing else ["-m", "benchmarks.scale_out", "serve"]
    with tempfile.TemporaryDirectory(prefix="ragmesh-bench-") as made:
        folders = [Path(made) / str(place) for place in range(count)]
        try:
            for place, folder in enumerate(folders, start=first):
                folder.mkdir()
                given = {
                    "RAGMESH_HOME": str(folder),
                    f"{prefix}_HOST": f"127.0.0.{1 + place}",
                    f"{prefix}_PORT": str(port),
                    f"{prefix}_PORT_FILE": str(folder / "port"),
                    f"{prefix}_EXIT_WITH_PARENT": "true",
                    f"{prefix}_LOG_LEVEL": "WARNING",
                    "RAGMESH_GENERATOR_THREADS": "1",
                    "RAGMESH_GENERATOR_DEVICE": "cpu",
                    _NAME_VARIABLE: f"process-{place}",
                    "PYTHONPATH": ROOT,
                }
                if age_s is not None:
                    given[f"{prefix}_MAX_CONNECTION_AGE_S"] = str(age_s)
                process = await asyncio.create_subprocess_exec(
                    sys.executable, *command, env=os.environ | given
                )
                started.append(_Process("", process))
            ends = time.monotonic() + START_S
            for place, folder in enumerate(folders):
                started[place] = await _serving(started[place].process, folder / "port", ends)
            yield started
        finally:
            for one in started:
                with contextlib.suppress(ProcessLookupError):
                    one.process.terminate()
            for one in started:
                await one.process.wait()


async def _serving(process: asyncio.subprocess.Process, file: Path, ends: float) -> _Process:
    while not (address := _written(file)):
        if process.returncode is not None or time.monotonic() > ends:
            raise RuntimeError("a process does not serve")
        await asyncio.sleep(0.05)
    async with connect(address, service="grpc.health.v1.Health", idempotent=["Check"]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
                if reply.status == health_pb2.HealthCheckResponse.SERVING:
                    return _Process(address, process)
            if time.monotonic() > ends:
                raise RuntimeError(f"the process at {address} does not become ready")
            await asyncio.sleep(0.1)


def _written(file: Path) -> str:
    return file.read_text(encoding="ascii").strip() if file.exists() else ""


def _listed(addresses: Sequence[str]) -> str:
    """A target that names every address."""
    return f"ipv4:{','.join(addresses)}"


def _free_port(count: int) -> int:
    """A port that is free on each of the first addresses of the loopback network."""
    while True:
        with contextlib.ExitStack() as stack:
            port = 0
            try:
                for place in range(count):
                    one = stack.enter_context(socket.socket())
                    one.bind((f"127.0.0.{1 + place}", port))
                    port = one.getsockname()[1]
            except OSError:
                continue
            return port


def _cpu_s(pid: int) -> float:
    return float(sum(psutil.Process(pid).cpu_times()[:2]))


class _Names(asyncio.DatagramProtocol):
    """A name server with one name: what a headless Service answers, without a cluster."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = list(addresses)
        self.port = 0
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        end = data.index(b"\0", 12) + 5  # the name, its type and its class
        question, kind = data[12:end], struct.unpack("!H", data[end - 4 : end - 2])[0]
        found = self.addresses if kind == 1 else []  # A; there is no AAAA and nothing else
        header = data[:2] + struct.pack("!HHHHH", 0x8580, 1, len(found), 0, 0)
        records = b"".join(
            b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 5, 4) + socket.inet_aton(one) for one in found
        )
        assert self._transport is not None  # noqa: S101 - it is connected
        self._transport.sendto(header + question + records, addr)


@contextlib.asynccontextmanager
async def _dns(addresses: Sequence[str]) -> AsyncIterator[_Names]:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(
        lambda: _Names(addresses), local_addr=("127.0.0.1", 0)
    )
    try:
        yield protocol
    finally:
        transport.close()


def main() -> None:
    """Measures and prints; ``serve`` runs one process that waits."""
    if sys.argv[1:] == ["serve"]:
        sys.exit(run(_serve))
    print(f"## {HEADING}\n\n{section(measure())}")


if __name__ == "__main__":
    main()
