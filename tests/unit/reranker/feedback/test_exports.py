"""Exports of feedback: a tenant has so many at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from evenmesh.reranker.v1 import feedback_service_pb2 as pb
from evenmesh.wire.errors import Overloaded
from evenmesh_kit.admission.shares import TenantShares
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.feedback.domain import Feedback, Flag, StoredFeedback
from evenmesh_reranker.feedback.servicer import FeedbackServicer

NOTHING: Any = None


class Store:
    """Two pages of one item."""

    async def page(self, scope: object, *, after: int, **_: object) -> list[StoredFeedback]:
        if after == 2:
            return []
        item = Feedback(str(after), "q", "p", Agent("t", "m"), 1.0)
        return [StoredFeedback(after + 1, item, Flag.NONE, 0, after + 1)]


async def test_a_tenant_has_as_many_exports_at_a_time_as_it_may() -> None:
    pool = TenantPool(1, "test")
    servicer = FeedbackServicer(
        intake=NOTHING,
        store=Store(),  # type: ignore[arg-type]
        agents=NOTHING,
        trainings=NOTHING,
        models=NOTHING,
        max_agents=1,
        exports=TenantShares(1, "exports", "MAX_TENANT_EXPORTS"),
        codec_pool=pool,
        clock=lambda: 0,
    )

    def export(tenant: str) -> AsyncIterator[pb.ExportFeedbackResponse]:
        callers.enter(Caller(tenant, tenant, frozenset()))
        return servicer.ExportFeedback(pb.ExportFeedbackRequest(), NOTHING)

    try:
        unread = export("loud")
        await anext(unread)
        with pytest.raises(Overloaded, match="MAX_TENANT_EXPORTS"):
            await anext(export("loud"))
        assert len([page async for page in export("quiet")]) == 2
        callers.enter(Caller("loud", "loud", frozenset()))
        assert len([page async for page in unread]) == 1
        assert len([page async for page in export("loud")]) == 2
    finally:
        pool.close()
