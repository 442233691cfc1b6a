"""The evaluator's engine over a scripted store: no tenant has all places of reports."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

import pytest

from evenmesh.wire.errors import NotFound
from evenmesh_evaluator import engine
from evenmesh_evaluator.domain import Scope, Window
from evenmesh_evaluator.engine import Evaluator
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller, Role


class HeldStore:
    """A store whose reports wait until they may end; it holds no observation."""

    def __init__(self) -> None:
        self.reading: Counter[str] = Counter()
        self.may_end = asyncio.Event()

    async def append(self, batch: object) -> None:
        raise AssertionError("nothing is observed here")

    async def totals(self, tenant: str, scope: Scope, window: Window) -> None:
        self.reading[tenant] += 1
        try:
            await self.may_end.wait()
        finally:
            self.reading[tenant] -= 1


async def test_reports_of_one_tenant_leave_places_to_another() -> None:
    store = HeldStore()
    evaluator = Evaluator(cast(Any, store), commit_size=1)

    async def report(tenant: str) -> None:
        callers.enter(Caller("k", tenant, frozenset({Role.ASK})))
        with pytest.raises(NotFound):
            await evaluator.report(tenant, "run")

    tasks = [asyncio.create_task(report("acme")) for _ in range(20)]
    for _ in range(100):
        await asyncio.sleep(0)
    assert store.reading["acme"] == engine._REPORTS // 2
    tasks.append(asyncio.create_task(report("other")))
    for _ in range(100):
        await asyncio.sleep(0)
    assert store.reading["other"] == 1
    store.may_end.set()
    await asyncio.gather(*tasks)
    assert store.reading.total() == 0
