"""Observations are deleted after the time that is set, at the start and every hour."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import make_url

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.errors import NotFound, Unavailable
from evenmesh_evaluator.__main__ import EvaluatorService
from evenmesh_evaluator.backends import sql_deletion
from evenmesh_evaluator.backends.sql import SqlObservationStore
from evenmesh_evaluator.engine import Evaluator
from evenmesh_evaluator.observations import retention
from evenmesh_evaluator.observations.retention import Retention
from evenmesh_evaluator.observations.scores import measure
from evenmesh_evaluator.servicer import EvaluatorServicer
from evenmesh_evaluator.settings import EvaluatorSettings
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import DEFAULT_TENANT, Caller
from tests.contract.test_observation_store import Clock, _observation

HOUR_US = 3_600 * 10**6


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[SqlObservationStore]:
    made = SqlObservationStore(make_url(f"sqlite+aiosqlite:///{tmp_path}/observations.db"), clock=clock)
    await made.open()
    yield made
    await made.close()


async def _store(store: SqlObservationStore, *ids: str) -> None:
    await store.append([(one, measure(one)) for one in map(_observation, ids)])


async def test_all_that_is_due_is_deleted_in_steps(
    store: SqlObservationStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_deletion, "MAX_STEP", 3)
    await _store(store, *map(str, range(10)))
    clock.now_us += 24 * HOUR_US
    await _store(store, "later")
    keeper = Retention(store, timedelta(days=1), clock=clock)
    assert await keeper.delete() == 0  # not before a day is over
    clock.now_us += 1
    assert await keeper.delete() == 10
    assert await store.observation(DEFAULT_TENANT, "later") is not None


async def test_a_run_without_observations_is_listed_empty_while_others_are_not_there(
    store: SqlObservationStore, clock: Clock
) -> None:
    await _store(store, "old")
    clock.now_us += 25 * HOUR_US
    await Retention(store, timedelta(days=1), clock=clock).delete()
    evaluator = Evaluator(store, commit_size=1)
    assert [one.scope for one in (await evaluator.runs(DEFAULT_TENANT, before=None, limit=10))[0]] == ["run"]
    assert [one async for one in evaluator.measurements(DEFAULT_TENANT, "run")] == []
    with pytest.raises(NotFound, match="no run 'other'"):
        _ = [one async for one in evaluator.measurements(DEFAULT_TENANT, "other")]
    await evaluator.close()


@pytest.mark.parametrize("failure", [Unavailable("STORE_LOCKED", "locked"), RuntimeError("unforeseen")])
async def test_it_goes_on_after_a_failure(
    store: SqlObservationStore, clock: Clock, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    monkeypatch.setattr(retention, "PERIOD_S", 0.0)
    await _store(store, "old")
    clock.now_us += 25 * HOUR_US
    real, failures = store.delete_before, iter([True])

    async def failing(stored_us: int) -> int:
        if next(failures, False):
            raise failure
        return await real(stored_us)

    monkeypatch.setattr(store, "delete_before", failing)
    keeper = Retention(store, timedelta(days=1), clock=clock)
    keeper.start()
    async with asyncio.timeout(60):
        while await store.observation(DEFAULT_TENANT, "old") is not None:
            await asyncio.sleep(0.01)
    await keeper.stop()


@pytest.mark.parametrize("days", [None, 1])
async def test_the_setting_decides(tmp_path: Path, days: int | None) -> None:
    made = SqlObservationStore(EvaluatorSettings(home=tmp_path).database(), clock=lambda: 0)
    await made.open()
    await made.append([(one, measure(one)) for one in (_observation("of 1970", payload=b""),)])
    await made.close()
    service = EvaluatorService(EvaluatorSettings(home=tmp_path, observation_days=days))
    await service.start()
    servicer = cast(EvaluatorServicer, service.registrations[0].servicer)
    callers.enter(Caller("test", DEFAULT_TENANT, frozenset()))

    async def is_kept() -> bool:
        request = pb.GetObservationRequest(observation_id="of 1970")
        try:
            await servicer.GetObservation(request, cast(Any, None))
        except NotFound:
            return False
        return True

    try:
        assert await is_kept() or days is not None
        async with asyncio.timeout(60):
            while days is not None and await is_kept():
                await asyncio.sleep(0.01)
    finally:
        await service.stop()
