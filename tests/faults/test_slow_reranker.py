"""A reranker that hangs is cut at its part of the time, then left alone, then found again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from benchmarks import load
from benchmarks.overload import COLLECTION, Pace, PacedMesh, paced_mesh
from evenmesh.common.v1 import common_pb2
from evenmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as pb_grpc

pytestmark = [pytest.mark.mesh, pytest.mark.faults, pytest.mark.timeout(240)]

FAILURES = 3
TIMEOUT_S = 16.0
LEFT_TO_THE_RETRIEVER = ("STAGE_RERANK", "ACTION_RETRIEVER_ORDER")


@pytest.fixture(scope="module")
def mesh() -> Iterator[PacedMesh]:
    """Five processes; the orchestrator may give the reranker an eighth of an ask's time."""
    settings = {
        "EVENMESH_ORCHESTRATOR_RERANK_SHARE": "0.125",
        "EVENMESH_ORCHESTRATOR_BREAKER_FAILURES": str(FAILURES),
        "EVENMESH_ORCHESTRATOR_BREAKER_SLOW_S": "1.6",
        "EVENMESH_ORCHESTRATOR_BREAKER_OPEN_S": "3.0",
    }
    with paced_mesh(Pace(slots=4, answer_s=0.0, max_work=8), settings) as mesh:
        yield mesh


async def _ask(
    stub: pb_grpc.OrchestratorServiceAsyncStub,
) -> tuple[list[int], list[tuple[str, str, str]]]:
    """What an ask showed the model, as places in the pool, and how it was degraded on the way to its answer.

    An observation that the evaluator took too long over on a busy machine waits in the outbox: no matter here.
    """
    shown: list[int] = []
    degraded: list[tuple[str, str, str]] = []
    last = ""
    async for event in stub.Ask(load.request(COLLECTION), timeout=TIMEOUT_S):
        last = event.WhichOneof("event") or ""
        if last == "ranked":
            shown = list(event.ranked.contexts.indices)
        elif last == "degraded":
            one = event.degraded
            if one.stage == common_pb2.STAGE_OBSERVE:
                continue
            degraded.append(
                (common_pb2.Stage.Name(one.stage), common_pb2.Degradation.Action.Name(one.action), one.reason)
            )
    assert last == "done"
    return shown, degraded


async def test_a_reranker_that_hangs(mesh: PacedMesh) -> None:
    async with mesh.stub("polite") as stub:
        for _ in range(10):  # the first calls also connect the services and load what they read
            _, degraded = await _ask(stub)
            if not degraded:
                break
        assert degraded == []
        os.kill(mesh.pids["reranker"], signal.SIGSTOP)
        try:
            for _ in range(FAILURES):
                shown, degraded = await _ask(stub)
                # Cut at its part of the time; the answer is written from the retriever's order.
                assert degraded == [(*LEFT_TO_THE_RETRIEVER, "BUDGET_EXCEEDED")]
                assert shown == list(range(5))
            shown, degraded = await _ask(stub)
            assert degraded == [(*LEFT_TO_THE_RETRIEVER, "CIRCUIT_OPEN")]
            assert shown == list(range(5))
        finally:
            os.kill(mesh.pids["reranker"], signal.SIGCONT)
        async with asyncio.timeout(90):  # found again
            while degraded:
                _, degraded = await _ask(stub)
                assert all(one[:2] == LEFT_TO_THE_RETRIEVER for one in degraded)
                await asyncio.sleep(0.05)
