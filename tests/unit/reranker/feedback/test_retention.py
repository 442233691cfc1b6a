"""Deleting what is old until none of it is left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from evenmesh_reranker.backends.sql.database import Database
from evenmesh_reranker.backends.sql.feedback import DAY_US, SqlFeedbackStore
from evenmesh_reranker.backends.sql.served import SqlServedStore
from evenmesh_reranker.domain import Agent, AllAgents
from evenmesh_reranker.feedback.domain import Feedback, ServedRanking
from evenmesh_reranker.feedback.retention import Retention


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
