"""SQLite on an event loop: nothing stays locked, and nobody waits for a lock with the loop in hand."""

from __future__ import annotations

import asyncio
import gc
import random
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.event import listen
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from evenmesh_kit.storage import sqlite_file
from evenmesh_kit.storage.sqlite import unlock_when_cancelled, write_ahead

LOCK_TIMEOUT_S = 2.0


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No garbage is collected meanwhile: nothing is let go of by chance."""
    gc.disable()
    yield
    gc.enable()


def engine_of(path: Path) -> AsyncEngine:
    """An engine whose transactions take the lock to write at once, as those of our stores do."""

    def prepare(connection: Any, _: Any) -> None:
        connection.isolation_level = None
        write_ahead(connection)  # the cancelled one before may be switching the file at this moment

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"timeout": LOCK_TIMEOUT_S})
    listen(engine.sync_engine, "connect", prepare)
    listen(engine.sync_engine, "begin", begin)
    return engine


async def write(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(text("SELECT 1"))
        await connection.execute(text("CREATE TABLE IF NOT EXISTS things (id INTEGER)"))
        await connection.execute(text("INSERT INTO things VALUES (1)"))


async def test_whoever_writes_next_finds_it_unlocked(uncollected: None, tmp_path: Path) -> None:
    rng = random.Random(5)
    engine = engine_of(tmp_path / "things.db")
    unlock_when_cancelled(engine)
    cancelled, kept = 0, []
    for _ in range(400):
        writing = asyncio.create_task(write(engine))
        await asyncio.sleep(rng.choice([0.0, rng.uniform(0.0, 0.004)]))
        writing.cancel()
        try:
            await writing
        except asyncio.CancelledError as error:
            cancelled += 1
            kept.append(error)  # as whoever logs it does: with its traceback it holds what was cancelled
        await write(engine)
    await engine.dispose()
    assert cancelled > 50


async def test_who_is_cancelled_while_it_opens_a_file_leaves_it_unlocked(
    uncollected: None, tmp_path: Path
) -> None:
    switched, cancelled = threading.Event(), threading.Event()

    class SwitchingCursor(sqlite3.Cursor):
        def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
            super().execute(statement, *parameters)
            if "journal_mode" in statement:
                switched.set()
                cancelled.wait(60)
            return self

    class Switching(sqlite3.Connection):
        def cursor(self, *_: Any) -> Any:
            return super().cursor(SwitchingCursor)

    path = tmp_path / "things.db"
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"factory": Switching})
    listen(engine.sync_engine, "connect", lambda connection, _: write_ahead(connection))
    unlock_when_cancelled(engine)
    opening = asyncio.create_task(write(engine))
    assert await asyncio.to_thread(switched.wait, 60)
    opening.cancel()
    await asyncio.sleep(0)
    cancelled.set()
    with pytest.raises(asyncio.CancelledError) as kept:
        await opening
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other:
        other.execute("BEGIN IMMEDIATE")
    assert kept.value
    await engine.dispose()


async def test_who_opens_a_file_that_another_changes_lets_the_loop_go_on(tmp_path: Path) -> None:
    path = tmp_path / "things.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")

    def prepare(connection: Any, _: Any) -> None:
        write_ahead(connection)

    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"timeout": 0})
    listen(engine.sync_engine, "connect", prepare)
    opening = asyncio.create_task(write(engine))
    await asyncio.sleep(0.1)
    other.execute("ROLLBACK")  # which the loop must let us do
    other.close()
    await opening
    await engine.dispose()


def test_a_file_that_another_changes_is_opened_when_it_is_done(tmp_path: Path) -> None:
    path = tmp_path / "things.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    mine = sqlite3.connect(path, isolation_level=None, timeout=0)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            other.execute("ROLLBACK")

    sqlite_file.write_ahead(mine, pause)
    assert len(pauses) == 3
    assert mine.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    mine.close()
    other.close()


@pytest.mark.parametrize(("synchronous", "number"), [("FULL", 2), ("NORMAL", 1)])
def test_a_file_is_opened_with_what_a_commit_must_reach(
    synchronous: Literal["FULL", "NORMAL"], number: int, tmp_path: Path
) -> None:
    with closing(sqlite_file.connect(tmp_path / "things.db", synchronous=synchronous)) as file:
        assert file.execute("PRAGMA synchronous").fetchone() == (number,)
        assert file.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        file.execute("CREATE TABLE things (id INTEGER)")
        assert not file.in_transaction
