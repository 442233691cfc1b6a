"""A tenant that floods the mesh takes no other tenant's turn: whole processes.

The order of turns itself is in tests/unit/kit/admission/test_fair_queueing.py, where nothing depends on time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import pytest

from benchmarks.overload import Pace, PacedMesh, flood, in_turn, paced_mesh

pytestmark = [pytest.mark.mesh, pytest.mark.faults, pytest.mark.timeout(240)]

ASKS = 8
PACE = Pace(slots=8, answer_s=0.3, max_work=8, queue_s=20.0)


@pytest.fixture(scope="module")
def mesh() -> Iterator[PacedMesh]:
    """Five processes; the model writes eight answers at a time, and the orchestrator lets eight asks in."""
    with paced_mesh(PACE) as mesh:
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
    assert [one.error for one in [*alone, *beside]] == [None] * 2 * ASKS
    # The flood has the rest, and learns when to come again.
    assert len([one for one in floods if one.error is None]) > ASKS
    refused = [one.error for one in floods if one.error is not None]
    assert refused
    assert {(error.code, error.reason) for error in refused} == {
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "SHARE_FULL")
    }
    assert all(error.retry_after_s is not None for error in refused)
