"""One client that asks: one at a time for latency, many at once for flows per second."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import grpc
import numpy as np

from benchmarks import shapes
from ragmesh.orchestrator.v1 import orchestrator_service_pb2 as orch
from ragmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as orch_grpc


@dataclass(frozen=True)
class Latency:
    """Latency of asks made one after the other, in milliseconds."""

    p50: float
    p99: float


async def _ask(stub: orch_grpc.OrchestratorServiceAsyncStub, request: orch.AskRequest) -> None:
    last = ""
    async for message in stub.Ask(request, timeout=60):
        last = message.WhichOneof("event") or ""
    if last != "done":
        raise RuntimeError(f"an ask ended with {last!r} instead of done")


def request(collection: str) -> orch.AskRequest:
    """The ask that is timed."""
    return orch.AskRequest(
        question=shapes.QUESTION, collection=collection, depth=shapes.POOL, k=shapes.SHOWN, run_id="bench"
    )


async def latency(target: str, ask: orch.AskRequest, *, count: int, warm_up: int = 20) -> Latency:
    """Times ``count`` asks, one after the other."""
    async with grpc.aio.insecure_channel(target) as channel:
        stub = orch_grpc.OrchestratorServiceStub(channel)
        for _ in range(warm_up):
            await _ask(stub, ask)
        times = []
        for _ in range(count):
            began = time.perf_counter()
            await _ask(stub, ask)
            times.append(1e3 * (time.perf_counter() - began))
    p50, p99 = np.percentile(times, [50, 99])
    return Latency(float(p50), float(p99))


async def throughput(target: str, ask: orch.AskRequest, *, callers: int, count: int) -> float:
    """Asks per second with ``callers`` of them under way at any time."""
    async with grpc.aio.insecure_channel(target) as channel:
        stub = orch_grpc.OrchestratorServiceStub(channel)
        await asyncio.gather(*(_ask(stub, ask) for _ in range(callers)))
        left = iter(range(count))

        async def call() -> None:
            for _ in left:
                await _ask(stub, ask)

        began = time.perf_counter()
        await asyncio.gather(*(call() for _ in range(callers)))
        return count / (time.perf_counter() - began)
