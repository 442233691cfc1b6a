"""Whole processes with models at a pace of their own: a tenant that floods the mesh, and a reranker that hangs.

The tenant takes no other tenant's turn. The reranker is cut at its part of the time, then left alone, then found again.
The order of turns itself is in tests/unit/kit/admission/test_fair_queueing.py, where nothing depends on time.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import grpc
import pytest

from benchmarks import load
from benchmarks.overload import COLLECTION, Pace, PacedMesh, flood, in_turn, p99_ms, paced_mesh
from evenmesh.common.v1 import common_pb2
from evenmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as pb_grpc

pytestmark = [pytest.mark.mesh, pytest.mark.faults, pytest.mark.timeout(240)]

ASKS = 8
PACE = Pace(slots=8, answer_s=0.3, max_work=8, queue_s=20.0)
FAILURES = 3
TIMEOUT_S = 16.0
LEFT_TO_THE_RETRIEVER = ("STAGE_RERANK", "ACTION_RETRIEVER_ORDER")


@pytest.fixture(scope="module")
def mesh() -> Iterator[PacedMesh]:
    """Five processes; the model writes eight answers at a time, and the orchestrator lets eight asks in.

    The orchestrator may give the reranker an eighth of an ask's time.
    """
    settings = {
        "EVENMESH_ORCHESTRATOR_RERANK_SHARE": "0.125",
        "EVENMESH_ORCHESTRATOR_BREAKER_FAILURES": str(FAILURES),
        "EVENMESH_ORCHESTRATOR_BREAKER_SLOW_S": "1.6",
        "EVENMESH_ORCHESTRATOR_BREAKER_OPEN_S": "3.0",
    }
    with paced_mesh(PACE, settings) as mesh:
        yield mesh


async def test_a_tenant_that_asks_for_little_is_always_served(mesh: PacedMesh) -> None:
    async with mesh.stub("polite") as polite, mesh.stub("flood") as flooding:
        alone = await in_turn(polite, ASKS)
        ended = asyncio.Event()
        flooded = asyncio.create_task(flood(flooding, ended))
        await asyncio.sleep(4 * PACE.answer_s)
        beside = await in_turn(polite, ASKS)
        ended.set()
        floods = await flooded
    ratio = p99_ms(beside) / p99_ms(alone)
    print(f"p99 alone {p99_ms(alone):.0f} ms, beside a flood {ratio:.2f} x that")  # noqa: T201
    assert [one.error for one in beside] == [None] * ASKS
    # The flood has the rest, and learns when to come again.
    assert len([one for one in floods if one.error is None]) > ASKS
    refused = [one.error for one in floods if one.error is not None]
    assert refused
    assert {(error.code, error.reason) for error in refused} == {
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    }
    assert all(error.retry_after_s is not None for error in refused)


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
