"""Deleting what is old until none of it is left."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import URL

from evenmesh.wire.errors import Unavailable
from evenmesh_reranker.backends.sql.database import Database
from evenmesh_reranker.backends.sql.feedback import DAY_US, SqlFeedbackStore
from evenmesh_reranker.backends.sql.served import SqlServedStore
from evenmesh_reranker.domain import Agent, AllAgents
from evenmesh_reranker.feedback import retention as retention_module
from evenmesh_reranker.feedback.domain import Feedback, ServedRanking, served_key
from evenmesh_reranker.feedback.retention import Retention
from evenmesh_reranker.feedback.served import ServedRankings
from tests.support.waiting import until


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(URL.create("sqlite+aiosqlite", database=str(tmp_path / "feedback.db")))
    await database.open()
    yield database
    await database.close()


async def test_what_is_too_old_goes_and_what_is_not_stays(database: Database) -> None:
    now = [100 * DAY_US]
    store, served = SqlFeedbackStore(database, clock=lambda: now[0]), SqlServedStore(database)
    for age, count in ((40, 700), (10, 3)):
        now[0] = (100 - age) * DAY_US
        await store.record(
            [Feedback(f"{age}-{at}", "q", f"p{at}", Agent("a", "b"), 0.5) for at in range(count)]
        )
        await served.remember([ServedRanking(bytes([age]) * 16, b"", now[0], "default")])
    now[0] = 100 * DAY_US
    retention = Retention(store, feedback_days=30, served=served, served_days=20, clock=lambda: now[0])
    assert await retention.sweep() == 700
    assert [one.feedback.id for one in await store.page(AllAgents(), include_flagged=True)] == [
        "10-0",
        "10-1",
        "10-2",
    ]
    assert await served.recall(bytes([40]) * 16) == []
    assert await served.recall(bytes([10]) * 16) == [b""]
    assert await retention.sweep() == 0


@pytest.mark.parametrize("failure", [Unavailable("STORE_LOCKED", "locked"), RuntimeError("unforeseen")])
async def test_it_goes_on_after_a_failure(
    database: Database, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    monkeypatch.setattr(retention_module, "_EVERY_S", 0.0)
    store, served = SqlFeedbackStore(database, clock=lambda: 0), SqlServedStore(database)
    await store.record([Feedback("old", "q", "p", Agent("a", "b"), 0.5)])
    real, failures = store.delete_before, iter([True])

    async def failing(before_us: int, *, limit: int) -> int:
        if next(failures, False):
            raise failure
        return await real(before_us, limit=limit)

    monkeypatch.setattr(store, "delete_before", failing)
    retention = Retention(store, feedback_days=1, served=served, served_days=1, clock=lambda: 9 * DAY_US)
    retention.start()

    async def gone() -> bool:
        return await store.page(AllAgents()) == []

    await until(gone)
    await retention.close()


async def test_served_rankings_are_written_after_a_failure(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqlServedStore(database)
    real, failures = store.remember, iter([True])

    async def failing(served: Sequence[ServedRanking]) -> None:
        if next(failures, False):
            raise RuntimeError("unforeseen")
        await real(served)

    monkeypatch.setattr(store, "remember", failing)
    served = ServedRankings(store, capacity=10, flush_s=0.01, clock=lambda: 0)
    served.start()
    served.remember("q", Agent("a", "b"), "v", ["p"])

    async def written() -> bool:
        return bool(await store.recall(served_key("q", Agent("a", "b"), "v")))

    await until(written)
    await served.close()
