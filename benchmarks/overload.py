"""A mesh under four times the load it can take, and a tenant beside one that floods it.

    python -m benchmarks.overload --seconds 60 --overload-seconds 400

The five real processes, with models that answer at a pace of their own (``benchmarks.paced_generator``): what
the mesh can take is known, and it is the mesh that is measured. Load comes in an open loop: asks arrive at
random times (Poisson) whether others are answered or not, and who is refused does not come again.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import numpy as np
import psutil
from scipy.stats import linregress

from benchmarks import load
from benchmarks.mesh import COLLECTION, ingest, stand_in_mesh
from benchmarks.paced_generator import ANSWER_VARIABLE, SLOTS_VARIABLE
from evenmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as orch_grpc
from evenmesh.wire.channel import connect
from evenmesh.wire.credentials import Credential
from evenmesh.wire.errors import MeshError, from_rpc_error
from evenmesh.wire.security import ChannelSecurity
from evenmesh_kit.security import keys
from evenmesh_studies.load.calls.arrivals import poisson

TENANTS: Final = ("polite", "flood")
_SERVICE: Final = "evenmesh.orchestrator.v1.OrchestratorService"
_TIMEOUT_S: Final = 30.0
_SAMPLE_S: Final = 0.25
FLOOD_CALLERS: Final = 64
_FLOOD_PAUSE_S: Final = 0.5


@dataclass(frozen=True)
class Pace:
    """What the models take, and what the orchestrator lets in.

    Attributes:
        slots: answers at a time.
        answer_s: seconds for one.
        max_work: answers in flight at the orchestrator.
        queue_s: longest wait in its admission queue.
    """

    slots: int = 8
    answer_s: float = 1.0
    max_work: int = 9
    queue_s: float = 0.5

    @property
    def most_per_s(self) -> float:
        """Answers per second that the models can write."""
        return self.slots / self.answer_s


@dataclass(frozen=True)
class PacedMesh:
    """A mesh that runs.

    Attributes:
        home: its home.
        orchestrator: address of its orchestrator.
        keys: API keys by tenant.
        pids: process ids by service.
    """

    home: Path
    orchestrator: str
    keys: dict[str, str]
    pids: dict[str, int]

    @asynccontextmanager
    async def stub(self, tenant: str) -> AsyncIterator[orch_grpc.OrchestratorServiceAsyncStub]:
        """Yield calls to the orchestrator for a tenant."""
        channel = connect(self.orchestrator, service=_SERVICE, security=_shown(self.keys[tenant]))
        async with channel:
            yield orch_grpc.OrchestratorServiceStub(channel)


@contextmanager
def paced_mesh(pace: Pace, environment: dict[str, str] | None = None) -> Iterator[PacedMesh]:
    """Run a mesh with API keys for two tenants, which have the same 100 passages each."""
    with tempfile.TemporaryDirectory(prefix="evenmesh-paced-") as folder:
        home = Path(folder)
        known = {}
        for tenant, role in (*((tenant, "admin") for tenant in TENANTS), ("mesh", "service")):
            known[tenant], digest = keys.new_key()
            entry = {"name": tenant, "sha256": digest, "roles": [role], "tenant": tenant}
            keys.add_entry(home / "keys.toml", keys.KeyEntry.read(entry))
        given = {
            "EVENMESH_API_KEYS": str(home / "keys.toml"),
            "EVENMESH_API_KEY": known["mesh"],
            "EVENMESH_ORCHESTRATOR_MAX_WORK": str(pace.max_work),
            "EVENMESH_ORCHESTRATOR_QUEUE_S": str(pace.queue_s),
            SLOTS_VARIABLE: str(pace.slots),
            ANSWER_VARIABLE: str(pace.answer_s),
        }
        with stand_in_mesh(home, "benchmarks.paced_generator", given | (environment or {})) as state:
            for tenant in TENANTS:
                asyncio.run(ingest(state.addresses["retriever"], _shown(known[tenant])))
            pids = {name: one.pid for name, one in state.services.items() if one.pid is not None}
            yield PacedMesh(home, state.addresses["orchestrator"], known, pids)


def _shown(key: str) -> ChannelSecurity:
    return ChannelSecurity(None, Credential(key))


@dataclass(frozen=True)
class AskOutcome:
    """What became of one ask.

    Attributes:
        began: when it was sent. Seconds of the process's clock.
        took_s: seconds to its end.
        error: None if it was answered.
    """

    began: float
    took_s: float
    error: MeshError | None = None

    @property
    def ended(self) -> float:
        """When it ended."""
        return self.began + self.took_s


async def ask(stub: orch_grpc.OrchestratorServiceAsyncStub) -> AskOutcome:
    """Make one ask."""
    began = time.perf_counter()
    failure = None
    try:
        await load.ask(stub, load.request(COLLECTION), within_s=_TIMEOUT_S)
    except grpc.RpcError as error:
        failure = from_rpc_error(error)
    return AskOutcome(began, time.perf_counter() - began, failure)


async def in_turn(stub: orch_grpc.OrchestratorServiceAsyncStub, count: int) -> list[AskOutcome]:
    """Return asks one after the other."""
    return [await ask(stub) for _ in range(count)]


async def flood(
    stub: orch_grpc.OrchestratorServiceAsyncStub, ended: asyncio.Event, callers: int = FLOOD_CALLERS
) -> list[AskOutcome]:
    """Ask from many callers at once, each again shortly after a refusal, until the event is set."""
    made: list[AskOutcome] = []

    async def caller() -> None:
        while not ended.is_set():
            made.append(await ask(stub))
            if made[-1].error is not None:
                await asyncio.sleep(_FLOOD_PAUSE_S)

    await asyncio.gather(*(caller() for _ in range(callers)))
    return made


async def closed_loop(
    stub: orch_grpc.OrchestratorServiceAsyncStub, callers: int, seconds: float
) -> list[AskOutcome]:
    """Return asks of ``callers`` callers, each of whom asks one after the other."""
    until = time.perf_counter() + seconds
    made: list[AskOutcome] = []

    async def caller() -> None:
        while time.perf_counter() < until:
            made.append(await ask(stub))

    await asyncio.gather(*(caller() for _ in range(callers)))
    return made


async def open_loop(
    stub: orch_grpc.OrchestratorServiceAsyncStub,
    per_s: float,
    seconds: float,
    rng: np.random.Generator,
) -> list[AskOutcome]:
    """Return asks that arrive at random times, whether others are answered or not."""
    began = time.perf_counter()
    tasks: list[asyncio.Task[AskOutcome]] = []
    for due in poisson(per_s, seconds, rng).tolist():
        await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
        tasks.append(asyncio.create_task(ask(stub)))
    return await asyncio.gather(*tasks)


async def memory(pid: int, ended: asyncio.Event) -> list[tuple[float, float]]:
    """Sample the memory of a process until the event is set: seconds and MiB."""
    samples, process = [], psutil.Process(pid)
    while not ended.is_set():
        samples.append((time.perf_counter(), process.memory_info().rss / 2**20))
        await asyncio.sleep(_SAMPLE_S)
    return samples


def p99_ms(asked: Sequence[AskOutcome]) -> float:
    """99th percentile of those that were answered. Milliseconds."""
    return float(1e3 * np.percentile([one.took_s for one in asked if one.error is None], 99))


def per_s(asked: Sequence[AskOutcome]) -> float:
    """Return answers per second, over the time in which they ended."""
    ends = sorted(one.ended for one in asked if one.error is None)
    return (len(ends) - 1) / (ends[-1] - ends[0])


@dataclass(frozen=True)
class Overload:
    """What was measured; times in milliseconds, rates per second, memory of the orchestrator in MiB.

    ``slope`` is MiB a minute over the last two thirds of the overload, with the half width of its 95 %
    interval. ``refused`` counts reasons; ``without_delay`` those that did not say when to come again.
    """

    unloaded_p99_ms: float
    peak_per_s: float
    offered_per_s: float
    goodput_per_s: float
    admitted_p99_ms: float
    refused: dict[str, int]
    refused_p99_ms: float
    without_delay: int
    memory_mib: float
    slope: tuple[float, float]
    polite_p99_ms: float
    beside_flood_p99_ms: float
    beside_flood_refused: int
    flood_refused: int

    @property
    def goodput_share(self) -> float:
        """Goodput as a share of the peak."""
        return self.goodput_per_s / self.peak_per_s

    @property
    def p99_ratio(self) -> float:
        """99th percentile of what was admitted, beside that of one ask at a time."""
        return self.admitted_p99_ms / self.unloaded_p99_ms

    @property
    def flood_ratio(self) -> float:
        """99th percentile of the polite tenant beside the flood, and alone."""
        return self.beside_flood_p99_ms / self.polite_p99_ms


def measure(
    pace: Pace, *, seconds: float = 30.0, overload_s: float = 30.0, factor: float = 4.0, seed: int = 7
) -> Overload:
    """Measure a mesh unloaded, at its peak, under ``factor`` times that, and with a flooding tenant.

    Each part takes ``seconds``, but the overload, which takes ``overload_s``: that memory grows shows late.
    """
    with paced_mesh(pace) as mesh:
        return asyncio.run(_measure(mesh, pace, seconds, overload_s, factor, seed))


async def _measure(
    mesh: PacedMesh, pace: Pace, seconds: float, overload_s: float, factor: float, seed: int
) -> Overload:
    rng = np.random.default_rng(seed)
    async with mesh.stub("polite") as polite, mesh.stub("flood") as flooding:
        await closed_loop(polite, 4, 2.0)  # warm-up
        alone = await in_turn(polite, max(20, int(seconds / pace.answer_s)))
        peak = await closed_loop(polite, 2 * pace.slots, seconds)
        offered = factor * max(per_s(peak), 1.0)
        ended = asyncio.Event()
        watching = asyncio.create_task(memory(mesh.pids["orchestrator"], ended))
        loaded = await open_loop(polite, offered, overload_s, rng)
        ended.set()
        samples = await watching
        ended = asyncio.Event()
        flooded = asyncio.create_task(flood(flooding, ended))
        await asyncio.sleep(1.0)
        beside = await in_turn(polite, max(20, int(seconds / pace.answer_s / 2)))
        ended.set()
        floods = await flooded
    times, sizes = np.array(samples[len(samples) // 3 :]).T
    fit = linregress(times, sizes)
    errors = [one.error for one in loaded if one.error is not None]
    return Overload(
        unloaded_p99_ms=p99_ms(alone),
        peak_per_s=per_s(peak),
        offered_per_s=len(loaded) / overload_s,
        goodput_per_s=per_s(loaded),
        admitted_p99_ms=p99_ms(loaded),
        refused=dict(Counter(error.reason for error in errors)),
        refused_p99_ms=float(
            1e3 * np.percentile([one.took_s for one in loaded if one.error is not None] or [0.0], 99)
        ),
        without_delay=sum(error.retry_after_s is None for error in errors),
        memory_mib=float(sizes[-1]),
        slope=(60 * float(fit.slope), 60 * 1.96 * float(fit.stderr)),
        polite_p99_ms=p99_ms(alone),
        beside_flood_p99_ms=p99_ms(beside),
        beside_flood_refused=sum(one.error is not None for one in beside),
        flood_refused=sum(one.error is not None for one in floods),
    )


def report(
    found: Overload, pace: Pace, *, seconds: float, overload_s: float, factor: float, seed: int
) -> str:
    """Return what was measured, in Markdown."""
    refused = ", ".join(f"{count} {reason}" for reason, count in sorted(found.refused.items())) or "none"
    slope, width = found.slope
    rows = [
        ("p99, one ask at a time", f"{found.unloaded_p99_ms:.0f} ms", ""),
        (f"peak, {2 * pace.slots} callers", f"{found.peak_per_s:.1f} answers/s", ""),
        (
            "offered",
            f"{found.offered_per_s:.0f} asks/s, {found.offered_per_s / found.peak_per_s:.1f} × the peak",
            f"{factor:g} ×",
        ),
        (
            "goodput",
            f"{found.goodput_per_s:.1f} answers/s, {100 * found.goodput_share:.0f} % of the peak",
            "≥ 90 %",
        ),
        (
            "p99 of what was admitted",
            f"{found.admitted_p99_ms:.0f} ms, {found.p99_ratio:.2f} × unloaded",
            "≤ 2 ×",
        ),
        (
            "refused",
            f"{refused}; {found.without_delay} without a retry delay; p99 {found.refused_p99_ms:.0f} ms",
            "0 without",
        ),
        (
            "memory of the orchestrator",
            f"{found.memory_mib:.0f} MiB, {slope:+.2f} ± {width:.2f} MiB a minute",
            "flat",
        ),
        (
            f"p99 of a tenant beside one of {FLOOD_CALLERS} callers",
            f"{found.beside_flood_p99_ms:.0f} ms, {found.flood_ratio:.2f} × alone",
            "≤ 2 ×",
        ),
        ("refused of it; of the flood", f"{found.beside_flood_refused}; {found.flood_refused}", "0 of it"),
    ]
    lines = [
        f"Five processes; the model takes {pace.answer_s:g} s for an answer and writes {pace.slots} at a",
        f"time, at most {pace.most_per_s:.0f} a second. The orchestrator lets {pace.max_work} in, and has",
        f"others wait in its queue for {pace.queue_s:g} s.",
        f"{overload_s:g} s of overload, {seconds:g} s for each other part; random arrivals, seed {seed}.",
        "",
        "| | | target |",
        "|---|---|---|",
        *(f"| {what} | {value} | {target} |" for what, value, target in rows),
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="length of each part")
    parser.add_argument(
        "--overload-seconds", type=float, help="length of the overload; as the others if left out"
    )
    parser.add_argument("--factor", type=float, default=4.0, help="load as a multiple of the peak")
    parser.add_argument("--seed", type=int, default=7, help="of the times of arrival")
    parser.add_argument("--answer-s", type=float, default=Pace.answer_s, help="time an answer takes")
    options = parser.parse_args(arguments)
    if options.seconds < 5 or options.factor <= 0 or options.answer_s <= 0:
        parser.error("--seconds must be at least 5, --factor and --answer-s above 0")
    pace = Pace(answer_s=options.answer_s, queue_s=options.answer_s / 2)
    parts = {"seconds": options.seconds, "overload_s": options.overload_seconds or options.seconds}
    found = measure(pace, **parts, factor=options.factor, seed=options.seed)
    sys.stdout.write(report(found, pace, **parts, factor=options.factor, seed=options.seed) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
