"""One client that asks: one at a time for latency, many at once for flows per second."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np

from benchmarks import shapes
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as orch
from evenmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as orch_grpc


@dataclass(frozen=True)
class Latency:
    """Latency of asks made one after the other, in milliseconds."""

    p50: float
    p99: float


async def ask(
    stub: orch_grpc.OrchestratorServiceAsyncStub, request: orch.AskRequest, *, within_s: float = 60.0
) -> None:
    """Make one ask.

    Raises:
        RuntimeError: it ended without an answer.
    """
    last = ""
    async for message in stub.Ask(request, timeout=within_s):
        last = message.WhichOneof("event") or ""
    if last != "done":
        raise RuntimeError(f"an ask ended with {last!r} instead of done")


def request(collection: str) -> orch.AskRequest:
    """Return the ask that is timed."""
    return orch.AskRequest(
        question=shapes.QUESTION, collection=collection, depth=shapes.POOL, k=shapes.SHOWN, run_id="bench"
    )


async def latency(target: str, wanted: orch.AskRequest, *, count: int, warm_up: int = 20) -> Latency:
    """Time ``count`` asks, one after the other."""
    async with grpc.aio.insecure_channel(target) as channel:
        stub = orch_grpc.OrchestratorServiceStub(channel)
        for _ in range(warm_up):
            await ask(stub, wanted)
        times = []
        for _ in range(count):
            began = time.perf_counter()
            await ask(stub, wanted)
            times.append(1e3 * (time.perf_counter() - began))
    p50, p99 = np.percentile(times, [50, 99])
    return Latency(float(p50), float(p99))


async def throughput(target: str, wanted: orch.AskRequest, *, callers: int, count: int) -> float:
    """Return asks per second with ``callers`` of them under way at any time."""
    async with grpc.aio.insecure_channel(target) as channel:
        stub = orch_grpc.OrchestratorServiceStub(channel)
        await asyncio.gather(*(ask(stub, wanted) for _ in range(callers)))
        left = iter(range(count))

        async def call() -> None:
            for _ in left:
                await ask(stub, wanted)

        began = time.perf_counter()
        await asyncio.gather(*(call() for _ in range(callers)))
        return count / (time.perf_counter() - began)


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process until now."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def leave_to_others() -> None:
    """Make this process, which stands for another machine, a session of its own with the lowest priority."""
    os.setsid()
    os.nice(19)
    # Where Linux groups processes by session, niceness counts within a session alone: a session has its own.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("19\n")
