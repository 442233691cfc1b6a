"""Reranking while versions are swapped and while a training runs: one reranker process, asked over gRPC.

``python -m benchmarks.swapping`` trains a cross-encoder until it is ended; :func:`measure` starts that, at
the lowest priority, as a trainer is to be run.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import numpy as np

from evenmesh.common.v1 import common_pb2
from evenmesh.reranker.v1 import feedback_service_pb2 as feedback_pb
from evenmesh.reranker.v1 import reranker_service_pb2 as pb
from evenmesh.reranker.v1.feedback_service_pb2_grpc import FeedbackServiceStub
from evenmesh.reranker.v1.reranker_service_pb2_grpc import RerankerServiceStub
from evenmesh.wire.channel import connect
from evenmesh_mesh import Mesh, MeshSettings
from evenmesh_mesh.services import SERVICES
from evenmesh_reranker.models.manifest import Lineage
from evenmesh_reranker.models.store import ModelStore
from evenmesh_reranker.servicer import RERANKER

CLIENTS = 8
PAIRS = 20
WORDS = 100
"""Words of a passage."""
SECONDS = 30.0
"""Of each phase."""
SWAP_EVERY_S = 2.0
START_S = 300.0
QUIET, SWAPS, TRAINING, BOTH = "nothing else", "swaps", "a training", "swaps and a training"


async def measure(*, seconds: float = SECONDS, clients: int = CLIENTS) -> list[dict[str, str]]:
    """Return a row for each phase; in the first and the last, which count as one, nothing else runs."""
    found: dict[str, list[_Seen]] = {}
    with tempfile.TemporaryDirectory(prefix="evenmesh-bench-") as made:
        home = Path(made)
        versions = await asyncio.to_thread(_versions, home)
        async with _reranker(home) as address:
            async with connect(address, service=RERANKER) as channel:
                await _promote(channel, versions[0])
                pause_s = await _pause(channel, clients)
            for name in (QUIET, SWAPS, TRAINING, BOTH, QUIET):
                async with _training(runs=name in (TRAINING, BOTH)):
                    swapped = versions if name in (SWAPS, BOTH) else []
                    seen = await _phase(address, clients, pause_s, seconds, swapped)
                found.setdefault(name, []).append(seen)
    calm = _p99([one for seen in found[QUIET] for one in seen.seconds])
    return [_row(name, seen, calm) for name, seen in found.items()]


@dataclass
class _Seen:
    seconds: list[float]
    failed: int
    swaps: int
    versions: set[str]


async def _phase(
    address: str, clients: int, pause_s: float, seconds: float, versions: Sequence[str]
) -> _Seen:
    seen = _Seen([], 0, 0, set())
    ends = time.perf_counter() + seconds

    async def ask(client: int) -> None:
        rng = np.random.default_rng(client)
        async with connect(address, service=RERANKER) as channel:
            stub = RerankerServiceStub(channel)
            while time.perf_counter() < ends:
                request = _request(rng, client)
                began = time.perf_counter()
                try:
                    reply = await stub.Rerank(request, timeout=60)
                except grpc.aio.AioRpcError:
                    seen.failed += 1
                    continue
                seen.seconds.append(time.perf_counter() - began)
                seen.versions.add(reply.model_version)
                await asyncio.sleep(pause_s * rng.uniform(0.5, 1.5))

    async def swap() -> None:
        async with connect(address, service=RERANKER) as channel:
            while time.perf_counter() < ends - 1:
                await asyncio.sleep(SWAP_EVERY_S)
                if seen.swaps % 3 == 2:
                    stub = FeedbackServiceStub(channel)
                    await stub.RollbackModel(feedback_pb.RollbackModelRequest(), timeout=START_S)
                else:
                    await _promote(channel, versions[(seen.swaps + 1) % 3 % 2])
                seen.swaps += 1

    others = [swap()] if versions else []
    await asyncio.gather(*(ask(client) for client in range(clients)), *others)
    return seen


async def _pause(channel: grpc.aio.Channel, clients: int) -> float:
    """Return the pause between a client's requests at which all keep the reranker half busy. Seconds."""
    stub = RerankerServiceStub(channel)
    rng = np.random.default_rng(0)
    times = []
    for turn in range(12):
        began = time.perf_counter()
        await stub.Rerank(_request(rng, turn), timeout=60)
        times.append(time.perf_counter() - began)
    return 2 * clients * float(np.median(times[2:]))


async def _promote(channel: grpc.aio.Channel, version: str) -> None:
    stub = FeedbackServiceStub(channel)
    await stub.PromoteModel(feedback_pb.PromoteModelRequest(version=version), timeout=START_S)


def _request(rng: np.random.Generator, client: int) -> pb.RerankRequest:
    """Return words drawn by Zipf's law, of an agent of the client's own."""
    words = [f"word{rank}" for rank in np.minimum(rng.zipf(1.3, (PAIRS + 1) * WORDS), 20_000).tolist()]
    return pb.RerankRequest(
        query=" ".join(words[:8]),
        passages=[
            common_pb2.Passage(id=str(at), text=" ".join(words[at * WORDS : (at + 1) * WORDS]))
            for at in range(1, PAIRS + 1)
        ],
        agent=common_pb2.Agent(task_id="qa", model_id=f"agent-{client}"),
        reranker="cross-encoder",
    )


def _versions(home: Path) -> list[str]:
    """Two cross-encoders of MiniLM-L6's shape in the store, with heads of their own."""
    from evenmesh_training.ium.start import fresh

    store = ModelStore(home / "reranker" / "models")
    found = []
    for seed in range(2):
        tokenizer, model = fresh(seed=seed)
        with store.write(Lineage(f"seed {seed}")) as draft:
            model.save_pretrained(draft.folder)
            tokenizer.save_pretrained(draft.folder)
        found.append(draft.version)
    return found


@asynccontextmanager
async def _reranker(home: Path) -> AsyncIterator[str]:
    """Run a reranker that computes with every core, whatever this process was set to; yield its address."""
    cores = str(os.cpu_count() or 1)
    (service,) = (replace(one, needs=()) for one in SERVICES if one.name == "reranker")
    environment = {
        "EVENMESH_RERANKER_DEVICE": "cpu",
        "EVENMESH_RERANKER_THREADS": cores,
        "OMP_NUM_THREADS": cores,
    }
    async with Mesh(MeshSettings(home, port=0, environment=environment, services=(service,))) as mesh:
        yield mesh.state.services["reranker"].address


@asynccontextmanager
async def _training(*, runs: bool) -> AsyncIterator[None]:
    """Yield a training beside, which has begun to compute."""
    if not runs:
        yield
        return
    command = [sys.executable, "-m", "benchmarks.swapping"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        if not await process.stdout.readline():
            raise RuntimeError("the training did not begin")
        yield
    finally:
        await _ended(process)


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    await process.wait()


def _row(name: str, seen: Sequence[_Seen], calm: float) -> dict[str, str]:
    seconds = [one for part in seen for one in part.seconds]
    return {
        "meanwhile": name,
        "answered": f"{len(seconds):,}",
        "failed": str(sum(part.failed for part in seen)),
        "swaps": str(sum(part.swaps for part in seen)),
        "versions that answered": str(len(set[str]().union(*(part.versions for part in seen)))),
        "p50": f"{1e3 * float(np.median(seconds)):.0f}",
        "p99": f"{1e3 * _p99(seconds):.0f}",
        "ratio": f"{_p99(seconds) / calm:.2f}",
    }


def _p99(seconds: Sequence[float]) -> float:
    return float(np.percentile(seconds, 99))


def _train() -> None:
    """Train a model of the same shape, in batches of a laptop's size, with one thread at lowest priority."""
    import torch

    from evenmesh_training.ium.start import fresh

    os.nice(19)
    torch.set_num_threads(1)
    _, model = fresh(seed=7)
    model.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    rng = torch.Generator().manual_seed(0)
    for step in itertools.count():
        ids = torch.randint(1000, 30_000, (16, 144), generator=rng)
        wanted = torch.rand(16, generator=rng)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(input_ids=ids).logits[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step == 0:
            sys.stdout.write("training\n")
            sys.stdout.flush()


if __name__ == "__main__":
    _train()
