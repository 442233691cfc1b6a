"""What the mesh costs beyond bare gRPC calls of the same shape, both measured in one run, in turn."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks import load, shapes
from evenmesh.local_mesh import MeshState
from evenmesh.retriever.v1 import collection_service_pb2 as collection_pb
from evenmesh.retriever.v1.collection_service_pb2_grpc import CollectionServiceStub
from evenmesh.wire.channel import connect
from evenmesh.wire.security import ChannelSecurity
from evenmesh_mesh import MeshSettings, launch, stop
from evenmesh_mesh.services import SERVICES, Service

COLLECTION = "bench"
CALLERS = 32
_ROLES = ("retriever", "reranker", "generator", "evaluator")


@dataclass(frozen=True)
class SideBySide:
    """One mesh beside another or beside the bare flow: medians over the rounds, ratios second over first."""

    first_p50_ms: float
    second_p50_ms: float
    p50_ratio: float
    p99_ratio: float
    first_per_s: float
    second_per_s: float
    flows_ratio: float
    rounds: int


def measure(*, rounds: int = 5, count: int = 200, flows: int = 600) -> SideBySide:
    """Measure the real mesh beside the bare flow.

    The mesh is the real five processes, its generator's and reranker's models replaced by ones that answer at
    once; its retriever searches 100 passages by BM25. The bare side is five processes of plain handlers.
    """
    with bare_flow() as bare, real_mesh() as mesh:
        return asyncio.run(side_by_side(bare, mesh, rounds, count, flows))


async def side_by_side(first: str, second: str, rounds: int, count: int, flows: int) -> SideBySide:
    """Warm two orchestrators up, and measure them with the same load, one after the other."""
    ask = load.request(COLLECTION)
    sides = (first, second)
    for target in sides:
        await load.throughput(target, ask, callers=8, count=100)
    latency: dict[str, list[load.Latency]] = {target: [] for target in sides}
    per_s: dict[str, list[float]] = {target: [] for target in sides}
    for turn in range(rounds):
        order = sides[::-1] if turn % 2 else sides
        for target in order:
            latency[target].append(await load.latency(target, ask, count=count))
        for target in order:
            per_s[target].append(await load.throughput(target, ask, callers=CALLERS, count=flows))
    pairs = list(zip(latency[first], latency[second], strict=True))
    return SideBySide(
        first_p50_ms=median(one.p50 for one in latency[first]),
        second_p50_ms=median(one.p50 for one in latency[second]),
        p50_ratio=median(other.p50 / one.p50 for one, other in pairs),
        p99_ratio=median(other.p99 / one.p99 for one, other in pairs),
        first_per_s=median(per_s[first]),
        second_per_s=median(per_s[second]),
        flows_ratio=median(b / a for a, b in zip(per_s[first], per_s[second], strict=True)),
        rounds=rounds,
    )


@contextmanager
def bare_flow() -> Iterator[str]:
    """Yield the five bare processes; gives the address of their orchestrator."""
    processes: list[subprocess.Popen[str]] = []

    def start(role: str, *targets: str) -> str:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bare", role, *targets], stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        return f"127.0.0.1:{process.stdout.readline().strip()}"

    try:
        upstreams = [start(role) for role in _ROLES]
        yield start("orchestrator", *upstreams)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(10)


@contextmanager
def real_mesh(environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield the address of a real mesh's orchestrator: models that answer at once, and 100 passages."""
    with (
        tempfile.TemporaryDirectory(prefix="evenmesh-bench-") as home,
        stand_in_mesh(Path(home), "benchmarks.stand_in_generator", environment or {}) as state,
    ):
        asyncio.run(ingest(state.addresses["retriever"]))
        yield state.addresses["orchestrator"]


@contextmanager
def stand_in_mesh(
    home: Path, generator: str, environment: Mapping[str, str], *, more: Sequence[Service] = ()
) -> Iterator[MeshState]:
    """Run a real mesh with stand-ins for its models.

    Args:
        home: of the mesh.
        generator: module that runs the generator.
        environment: more variables of its services.
        more: further services of it.
    """
    modules = {"reranker": "benchmarks.stand_in_reranker", "generator": generator}
    services = (*(replace(one, module=modules.get(one.name, one.module)) for one in SERVICES), *more)
    given = {
        "EVENMESH_RETRIEVER_ENCODER": "",
        # The stand-ins live in the checkout, not in the installed package.
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).resolve().parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        **environment,
    }
    state = launch(MeshSettings(home, port=0, services=services, environment=given))
    try:
        yield state
    finally:
        stop(home)


async def ingest(retriever: str, security: ChannelSecurity | None = None) -> None:
    """Ingest the 100 passages."""
    service = "evenmesh.retriever.v1.CollectionService"
    async with connect(retriever, service=service, security=security) as channel:
        call = CollectionServiceStub(channel).Ingest(timeout=60)
        await call.write(
            collection_pb.IngestRequest(
                collection=COLLECTION, passages=shapes.passages(), create_if_missing=True, last=True
            )
        )
        await call.done_writing()
        await call
