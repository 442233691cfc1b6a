"""Tenants take turns for the transactions of a database."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, make_url, text
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler

from evenmesh.wire import deadline
from evenmesh.wire.errors import DeadlineExceeded
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller, Role
from evenmesh_kit.storage.migrations import Schema
from evenmesh_kit.storage.sql import CONNECTIONS, SqlDatabase


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SqlDatabase]:
    (tmp_path / "versions").mkdir()
    (tmp_path / "versions" / "v0001_things.py").touch()  # never run: a new database has the tables of today
    schema = Schema(MetaData(), tmp_path, "versions", lambda _: None, "things")
    made = SqlDatabase(make_url(f"sqlite+aiosqlite:///{tmp_path}/things.db"), schema)
    await made.open()
    yield made
    await made.close()


def _as(tenant: str) -> None:
    """Act for a tenant in the rest of this task; for nobody, as background work, if it is empty."""
    if tenant:
        callers.enter(Caller(tenant, tenant, frozenset({Role.ASK})))


async def test_writers_of_tenants_and_of_nobody_take_turns(database: SqlDatabase) -> None:
    order: list[str] = []
    go = asyncio.Event()

    async def write(tenant: str) -> None:
        _as(tenant)
        async with database.write() as connection:
            await connection.execute(text("SELECT 1"))
            order.append(tenant)
            if len(order) == 1:
                await go.wait()

    async with asyncio.timeout(60):
        first = [asyncio.create_task(write("greedy")) for _ in range(20)]
        while not order:
            await asyncio.sleep(0)
        others = [asyncio.create_task(write(name)) for name in ("polite", "")]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*first, *others)
    assert sorted(order[1:3]) == ["", "polite"]
    assert order.count("greedy") == 20


async def test_no_tenant_has_all_readers(database: SqlDatabase) -> None:
    running: Counter[str] = Counter()
    go = asyncio.Event()

    async def read(tenant: str) -> None:
        _as(tenant)
        async with database.read() as connection:
            await connection.execute(text("SELECT 1"))
            running[tenant] += 1
            if tenant == "greedy":
                await go.wait()

    async with asyncio.timeout(60):
        greedy = [asyncio.create_task(read("greedy")) for _ in range(3 * CONNECTIONS)]
        while running["greedy"] < CONNECTIONS // 2:
            await asyncio.sleep(0.01)
        for tenant in ("polite", ""):
            await asyncio.create_task(read(tenant))
        assert running == {"greedy": CONNECTIONS // 2, "polite": 1, "": 1}
        go.set()
        await asyncio.gather(*greedy)


async def test_no_turn_is_waited_for_beyond_the_deadline(database: SqlDatabase) -> None:
    async def late() -> None:
        deadline.enter(deadline.Deadline.after(0.05))
        async with database.write():
            raise AssertionError

    async with database.write():
        with pytest.raises(DeadlineExceeded):
            await asyncio.create_task(late())
    async with database.write() as connection:
        assert await connection.scalar(text("SELECT 1")) == 1


async def test_a_transaction_that_writes_compiles_no_statement_of_the_store_again(
    database: SqlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    compile_ = SQLiteCompiler.__init__

    def noted(self: SQLiteCompiler, dialect: Any, statement: Any, *args: Any, **kwargs: Any) -> None:
        compiled.append(str(statement))
        compile_(self, dialect, statement, *args, **kwargs)

    for _ in range(2):
        compiled.clear()
        monkeypatch.setattr(SQLiteCompiler, "__init__", noted)
        async with database.write():
            pass
        monkeypatch.undo()
    assert compiled == []
