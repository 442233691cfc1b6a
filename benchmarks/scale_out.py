"""Scaling out on one machine: more processes behind round_robin, one of them killed, one of them new.

Two kinds of processes: the bundled generator, which computes and has to share the cores; and the real
reranker service around a scorer that waits instead, as one does whose model runs on a GPU of its own, which
shows the balancing alone. ``python -m benchmarks.scale_out`` runs one process that waits.
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
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final, cast

import grpc
import numpy as np

from benchmarks import shapes
from benchmarks.load import cpu_s
from benchmarks.stand_in_reranker import StandIn
from benchmarks.stand_in_reranker import main as serve_reranker
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb
from evenmesh.generator.v1.generator_service_pb2_grpc import GeneratorServiceStub
from evenmesh.reranker.v1 import reranker_service_pb2 as reranker_pb
from evenmesh.reranker.v1.reranker_service_pb2_grpc import RerankerServiceStub
from evenmesh.wire.channel import connect
from evenmesh_core.queueing import simulated_responses
from evenmesh_kit.process.serving import run
from evenmesh_mesh.logs import ServiceLog
from evenmesh_mesh.process import ServiceProcess
from evenmesh_mesh.services import SERVICES
from evenmesh_reranker.domain import Agent, Best, Passage, Scores
from evenmesh_reranker.servicer import RERANKER
from evenmesh_studies.load.calls.arrivals import poisson

ROOT = str(Path(__file__).resolve().parents[1])
HEADING = "Scaling out on one machine"
COUNTS = (1, 2, 4)
SECONDS = 15.0
CALLERS = 8
"""Callers for each process."""
WAIT_S, SLOTS = 0.1, 2
"""Seconds of a waiting process's calls, and how many it has at a time."""
RATE = 0.8
"""Of what the waiting processes can do together: the rate that is also simulated."""
LOAD = 0.5
"""Of what three of the waiting processes can do together: the rate while one of four is killed."""
AGE_S = 10.0
"""After so long a server closes a connection, and the client asks DNS again."""
START_S, GRACE_S = 120.0, 5.0
HOST = "replicas.evenmesh.test"
GENERATOR = "evenmesh.generator.v1.GeneratorService"
_NAME_VARIABLE = "EVENMESH_SCALE_OUT_NAME"
_SERVICES: Final = {one.name: one for one in SERVICES}

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
class Simulated:
    """Latencies of calls that arrive at a rate, and of the same arrivals in a simulation. Milliseconds."""

    processes: int
    rate: float
    mean_ms: float
    p95_ms: float
    simulated_mean_ms: float
    simulated_p95_ms: float


@dataclass(frozen=True)
class Found:
    """All that was measured; seconds from when a new process serves to its first call."""

    throughputs: Sequence[Throughput]
    simulated: Sequence[Simulated]
    killed: Killed
    listed_s: float
    resolved_s: float


def measure(*, seconds: float = SECONDS, computing: bool = True) -> Found:
    """Measure all of it.

    Args:
        seconds: length of each part.
        computing: whether processes that compute are measured, too; they take longest to start.
    """
    return asyncio.run(_measure(seconds, computing))


def section(found: Found) -> str:
    """Return all of it as a section of docs/science/benchmarks.md."""
    rows = "\n".join(
        f"| {one.kind} | {one.processes} | {one.per_s:.1f} | {one.ratio:.2f} | {100 * one.busiest:.0f} % |"
        for one in found.throughputs
    )
    simulated = "\n".join(
        f"| {one.processes} | {one.rate:.0f} | {one.mean_ms:.0f} / {one.p95_ms:.0f} "
        f"| {one.simulated_mean_ms:.0f} / {one.simulated_p95_ms:.0f} "
        f"| {one.simulated_mean_ms / one.mean_ms - 1:+.0%} / {one.simulated_p95_ms / one.p95_ms - 1:+.0%} |"
        for one in found.simulated
    )
    killed = found.killed
    return f"""Processes behind client-side `round_robin`, all on this machine's {os.cpu_count()} cores, for
each of them {CALLERS} callers who ask again at once. `waits`: the reranker service around a scorer that waits
{1e3 * WAIT_S:.0f} ms, {SLOTS} at a time, and computes next to nothing; `computes`: the bundled generator with
one thread, whose processes share the cores: more of them than cores add nothing.

| processes | | calls/s | ratio | share of the busiest process |
|---|---|---|---|---|
{rows}

Waiting processes at {100 * RATE:.0f} % of what they can do, with Poisson arrivals through one `round_robin`
channel, beside a discrete-event simulation of the same arrivals (`evenmesh_core.queueing`): {SLOTS} servers
in each process, whose service time is that of a call alone. Milliseconds, mean / 95th percentile (target:
within 15 %).

| processes | calls/s | measured | simulated | difference |
|---|---|---|---|---|
{simulated}

One of four waiting processes killed (`kill -9`) at {100 * LOAD:.0f} % of what the other three can do:
{killed.lost} of {killed.calls:,} calls lost; the slowest call around the kill took
{killed.slowest_ms:.0f} ms, before it {killed.usual_ms:.0f} ms. A new process gets its first call
{found.listed_s:.1f} s after it serves if its address was listed before (`ipv4:A,B,C`), and
{found.resolved_s:.1f} s after it serves and DNS knows it if servers close connections after {AGE_S:.0f} s
(`EVENMESH_<SERVICE>_MAX_CONNECTION_AGE_S`; target ≤ 30 s)."""


class Waiting(StandIn):
    """A scorer that waits, some calls at a time, and says which process it is in."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._slots = asyncio.Semaphore(SLOTS)

    async def score(
        self, query: str, passages: Sequence[Passage], agent: Agent, *, best: Best | None = None
    ) -> Scores:
        """Wait for its turn, and then as long as it takes."""
        async with self._slots:
            await asyncio.sleep(WAIT_S)
        return replace(await super().score(query, passages, agent, best=best), model_version=self._name)


async def _measure(seconds: float, computing: bool) -> Found:
    throughputs = []
    kinds = [("waits", _reranked, RERANKER), ("computes", _generated, GENERATOR)]
    for kind, ask, service in kinds if computing else kinds[:1]:
        alone = 0.0
        for count in COUNTS:
            async with _processes(count, computing=kind == "computes") as processes:
                target = _listed([one.address for one in processes])
                async with connect(target, service=service) as channel:
                    served = await _closed(channel, ask, CALLERS * count, seconds)
                    work = [cpu_s(one.pid) for one in processes]
            per_s = sum(served.values()) / seconds
            alone = alone or per_s
            # A generator does not say which process it is: there the processor's time stands for calls.
            shares = list(served.values()) if kind == "waits" else work
            throughputs.append(
                Throughput(kind, count, per_s, per_s / alone, max(shares) / max(sum(shares), 1e-9))
            )
    simulated = [await _simulated(processes, seconds) for processes in COUNTS]
    return Found(throughputs, simulated, await _kill(seconds), await _added_to_list(), await _added_to_dns())


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
    """Return calls that ended within ``seconds``, by process."""
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


async def _simulated(count: int, seconds: float) -> Simulated:
    """Measure calls that arrive at a rate, and simulate the same arrivals."""
    rate = RATE * count * SLOTS / WAIT_S
    due = poisson(rate, 2 * seconds, count)
    responses = np.zeros(len(due))
    alone = []
    async with _processes(count) as processes:
        target = _listed([one.address for one in processes])
        async with connect(target, service=RERANKER) as channel:
            await asyncio.gather(*(_reranked(channel) for _ in range(8 * count)))
            for _ in range(20):
                began = time.monotonic()
                await _reranked(channel)
                alone.append(time.monotonic() - began)
            began = time.monotonic()

            async def call(place: int, at: float) -> None:
                await _reranked(channel)
                responses[place] = time.monotonic() - began - at

            async with asyncio.TaskGroup() as group:
                for place, at in enumerate(due.tolist()):
                    await asyncio.sleep(max(0.0, at - (time.monotonic() - began)))
                    group.create_task(call(place, at))
    predicted = simulated_responses(due, median(alone), replicas=count, servers=SLOTS)
    return Simulated(
        count,
        rate,
        1e3 * float(responses.mean()),
        1e3 * float(np.quantile(responses, 0.95)),
        1e3 * float(predicted.mean()),
        1e3 * float(np.quantile(predicted, 0.95)),
    )


async def _kill(seconds: float) -> Killed:
    """Kill one process of four under load."""
    rate = LOAD * 3 * SLOTS / WAIT_S
    due = poisson(rate, 2 * seconds, 0)
    ended: list[tuple[float, float, bool]] = []
    async with _processes(4) as processes:
        target = _listed([one.address for one in processes])
        async with connect(target, service=RERANKER) as channel:
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
                processes[0].kill()

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
    """Return the time until a process that starts late gets a call, though listed from the start. Seconds."""
    port = _free_port(3)
    hosts = [f"127.0.0.{1 + place}" for place in range(3)]
    async with _processes(2, port=port):
        target = _listed([f"{host}:{port}" for host in hosts])
        async with connect(target, service=RERANKER) as channel:
            return await _until_served(channel, port)


async def _added_to_dns() -> float:
    """Return seconds until a process that DNS learns of gets a call: a headless Service with one pod more."""
    port = _free_port(3)
    async with _processes(2, port=port, age_s=AGE_S), _dns(["127.0.0.1", "127.0.0.2"]) as names:
        target = f"dns://127.0.0.1:{names.port}/{HOST}:{port}"
        async with connect(target, service=RERANKER) as channel:
            return await _until_served(channel, port, names, age_s=AGE_S)


async def _until_served(
    channel: grpc.aio.Channel, port: int, names: _Names | None = None, *, age_s: float | None = None
) -> float:
    """Return seconds from when a third process serves (and DNS knows it) to its first call."""
    asked = asyncio.ensure_future(_ask_on(channel, "process-2"))
    await asyncio.sleep(1.0)
    async with _processes(1, port=port, first=2, age_s=age_s):
        if names is not None:
            names.addresses = [*names.addresses, "127.0.0.3"]
        began = time.monotonic()
        try:
            return await asyncio.wait_for(asked, START_S) - began
        except TimeoutError:
            return float("inf")


async def _ask_on(channel: grpc.aio.Channel, wanted: str) -> float:
    """Return asks again and again; when the process that is waited for first answered."""
    while True:
        if await _reranked(channel) == wanted:
            return time.monotonic()
        await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def _processes(
    count: int,
    *,
    computing: bool = False,
    port: int = 0,
    first: int = 0,
    age_s: float | None = None,
) -> AsyncIterator[list[ServiceProcess]]:
    """Run processes that serve; each has an address of the loopback network of its own, as pods have."""
    waiting = replace(_SERVICES["reranker"], module="benchmarks.scale_out")
    service = _SERVICES["generator"] if computing else waiting
    port = port or _free_port(count)
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evenmesh-bench-")))
        started = []
        for place in range(first, first + count):
            host = f"127.0.0.{1 + place}"
            given = {
                "EVENMESH_HOME": str(folder / host),
                f"{service.prefix}HOST": host,
                f"{service.prefix}PORT": str(port),
                f"{service.prefix}EXIT_WITH_PARENT": "true",
                f"{service.prefix}LOG_LEVEL": "WARNING",
                "EVENMESH_GENERATOR_THREADS": "1",
                "EVENMESH_GENERATOR_DEVICE": "cpu",
                _NAME_VARIABLE: f"process-{place}",
                "PYTHONPATH": ROOT,
            }
            if age_s is not None:
                given[f"{service.prefix}MAX_CONNECTION_AGE_S"] = str(age_s)
            log = ServiceLog(folder, host)
            log.begin()
            process = await ServiceProcess.start(service, f"{host}:{port}", os.environ | given, log)
            stack.push_async_callback(process.stop, GRACE_S)
            started.append((process, log))
        for process, log in started:
            await _serving(process, log)
        yield [process for process, _ in started]


async def _serving(process: ServiceProcess, log: ServiceLog) -> None:
    waits = [asyncio.ensure_future(one) for one in (process.serving(), process.ended())]
    await asyncio.wait(waits, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
    if not waits[0].done():
        raise RuntimeError(f"the process at {process.address} does not serve: {log.complaint()}")
    waits[1].cancel()


def _listed(addresses: Sequence[str]) -> str:
    """Return a target that names every address."""
    return f"ipv4:{','.join(addresses)}"


def _free_port(count: int) -> int:
    """Return a port that is free on each of the first addresses of the loopback network."""
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


if __name__ == "__main__":
    sys.exit(run(partial(serve_reranker, Waiting(os.environ[_NAME_VARIABLE]))))
