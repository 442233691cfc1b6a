"""Statuses of trainings: those of a tenant are read one after the other, and leave a place to another's."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from evenmesh.reranker.v1 import feedback_service_pb2 as pb
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller
from evenmesh_reranker.domain import AllAgents
from evenmesh_reranker.feedback.servicer import FeedbackServicer
from evenmesh_reranker.feedback.training import State, Training, TrainingReport

NOTHING: Any = None


class HeldLog:
    """A log whose statuses wait until they may end."""

    def __init__(self) -> None:
        self.reading: Counter[str] = Counter()
        self.may_end = asyncio.Event()

    async def trainings(self, tenant: str) -> Sequence[Training]:
        self.reading[tenant] += 1
        await self.may_end.wait()
        self.reading[tenant] -= 1
        return [Training(TrainingReport(AllAgents(tenant), State.IDLE), 0, 0, None)]


async def test_statuses_of_one_tenant_leave_a_place_to_another() -> None:
    log = HeldLog()
    servicer = FeedbackServicer(
        intake=NOTHING,
        store=NOTHING,
        agents=NOTHING,
        trainings=log,  # type: ignore[arg-type]
        models=NOTHING,
        max_agents=1,
        exports=NOTHING,
        codec_pool=NOTHING,
        clock=lambda: 0,
    )

    async def status(tenant: str) -> pb.GetTrainingStatusResponse:
        callers.enter(Caller(tenant, tenant, frozenset()))
        return await servicer.GetTrainingStatus(pb.GetTrainingStatusRequest(), NOTHING)

    tasks = [asyncio.create_task(status(tenant)) for tenant in (*["loud"] * 20, "quiet")]
    for _ in range(100):
        await asyncio.sleep(0)
    assert log.reading == {"loud": 1, "quiet": 1}
    log.may_end.set()
    assert len(await asyncio.gather(*tasks)) == 21
