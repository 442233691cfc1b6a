"""What it costs to store a batch does not depend on how many agents it has: all others wait meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, event
from sqlalchemy.engine import Engine

from evenmesh_reranker.backends.sql.database import Database
from evenmesh_reranker.backends.sql.feedback import SqlFeedbackStore
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.feedback.domain import Feedback


class Statements:
    """The statements of a batch, and their values."""

    def __init__(self) -> None:
        self.all: list[tuple[str, Any]] = []

    def __call__(self, _: Any, __: Any, statement: str, values: Any, *___: Any) -> None:
        self.all.append((statement, values))


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(URL.create("sqlite+aiosqlite", database=str(tmp_path / "feedback.db")))
    await database.open()
    yield database
    await database.close()


@pytest.fixture
def statements() -> Iterator[Statements]:
    made = Statements()
    event.listen(Engine, "before_cursor_execute", made)
    yield made
    event.remove(Engine, "before_cursor_execute", made)


def _batch(number: int, usefulness: float, tag: str) -> list[Feedback]:
    """One item each of as many agents, of as many tasks."""
    return [
        Feedback(f"{tag}-{at}", "q", "p", Agent(f"task {at} of {number}", f"model {at}"), usefulness)
        for at in range(number)
    ]


async def test_a_batch_of_many_agents_takes_as_many_statements_as_of_one(
    database: Database, statements: Statements
) -> None:
    store = SqlFeedbackStore(database)
    await store.record(_batch(2, 0.0, "connects"))
    counts = []
    for number in (1, 100):
        # The second contradicts the first, which changes what is stored already.
        for usefulness, tag in ((0.0, "first"), (1.0, "second")):
            statements.all.clear()
            await store.record(_batch(number, usefulness, f"{tag}-{number}"))
            counts.append(len(statements.all))
    assert counts[:2] == counts[2:]


async def test_each_statement_finds_its_rows_by_an_index(database: Database, statements: Statements) -> None:
    store = SqlFeedbackStore(database)
    await store.record(_batch(20, 0.0, "first"))
    statements.all.clear()
    await store.record(_batch(20, 1.0, "second"))
    asked = [one for one in statements.all if "feedback" in one[0] and not one[0].startswith("INSERT")]
    assert len(asked) >= 4
    async with database.read() as connection:
        for statement, values in asked:
            plan = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
            steps = [row.detail for row in plan]
            assert not [step for step in steps if step.startswith("SCAN feedback")], statement
