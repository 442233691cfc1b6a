"""What the mesh costs beyond bare gRPC calls of the same shape, both measured in one run, in turn."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks import load, shapes
from ragmesh import Addresses, Client, Passage
from ragmesh.mesh import MeshSettings, launch, stop
from ragmesh.mesh.services import SERVICES

COLLECTION = "bench"
CALLERS = 32
_ROLES = ("retriever", "reranker", "generator", "evaluator")
_STAND_INS = {"reranker": "benchmarks.stand_in_reranker", "generator": "benchmarks.stand_in_generator"}


@dataclass(frozen=True)
class Round:
    """One round: the same load on either side, one after the other."""

    bare: load.Latency
    mesh: load.Latency
    bare_per_s: float
    mesh_per_s: float


@dataclass(frozen=True)
class Overhead:
    """Medians over the rounds; ratios are of pairs measured side by side."""

    bare_p50_ms: float
    mesh_p50_ms: float
    p50_ratio: float
    p99_ratio: float
    bare_per_s: float
    mesh_per_s: float
    flows_ratio: float
    rounds: int


def measure(*, rounds: int = 5, count: int = 200, flows: int = 600) -> Overhead:
    """Starts both sides, warms them up, and measures them in turn.

    The mesh is the real five processes, its generator's and reranker's models replaced by ones that answer at
    once; its retriever searches 100 passages by BM25. The bare side is five processes of plain handlers.
    """
    with bare_flow() as bare, real_mesh() as mesh:
        ask = load.request(COLLECTION)
        asyncio.run(_warm(bare, mesh, ask))
        results = [_round(bare, mesh, ask, count, flows, flip=bool(turn % 2)) for turn in range(rounds)]
    return Overhead(
        bare_p50_ms=median(one.bare.p50 for one in results),
        mesh_p50_ms=median(one.mesh.p50 for one in results),
        p50_ratio=median(one.mesh.p50 / one.bare.p50 for one in results),
        p99_ratio=median(one.mesh.p99 / one.bare.p99 for one in results),
        bare_per_s=median(one.bare_per_s for one in results),
        mesh_per_s=median(one.mesh_per_s for one in results),
        flows_ratio=median(one.mesh_per_s / one.bare_per_s for one in results),
        rounds=rounds,
    )


async def _warm(bare: str, mesh: str, ask: load.orch.AskRequest) -> None:
    for target in (bare, mesh):
        await load.throughput(target, ask, callers=8, count=100)


def _round(bare: str, mesh: str, ask: load.orch.AskRequest, count: int, flows: int, *, flip: bool) -> Round:
    order = [("mesh", mesh), ("bare", bare)] if flip else [("bare", bare), ("mesh", mesh)]
    latency = {name: asyncio.run(load.latency(target, ask, count=count)) for name, target in order}
    per_s = {
        name: asyncio.run(load.throughput(target, ask, callers=CALLERS, count=flows))
        for name, target in order
    }
    return Round(latency["bare"], latency["mesh"], per_s["bare"], per_s["mesh"])


@contextmanager
def bare_flow() -> Iterator[str]:
    """The five bare processes; gives the address of their orchestrator."""
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
def real_mesh() -> Iterator[str]:
    """The real mesh with stand-in models and 100 passages; gives the address of its orchestrator."""
    services = tuple(replace(one, module=_STAND_INS.get(one.name, one.module)) for one in SERVICES)
    with tempfile.TemporaryDirectory(prefix="ragmesh-bench-") as folder:
        home = Path(folder)
        environment = {
            "RAGMESH_RETRIEVER_ENCODER": "",
            # The stand-ins live in the checkout, not in the installed package.
            "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
        }
        launch(MeshSettings(home=home, port=0, services=services, environment=environment))
        try:
            addresses = Addresses.find(home)
            with Client(addresses) as client:
                client.ingest(
                    [
                        Passage(id=one.id, title=one.title, text=one.text, attributes=dict(one.attributes))
                        for one in shapes.passages()
                    ],
                    COLLECTION,
                )
            yield addresses.orchestrator
        finally:
            stop(home)
