"""One database: its engines, how transactions begin, and whether its tables are ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Table, and_, event, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from meshkit.errors import Unavailable
from meshkit.sqlite import unlock_when_cancelled, write_ahead
from services.reranker.backends.sql.failures import unavailable
from services.reranker.backends.sql.schema import SCHEMA
from services.reranker.backends.sql.tables import AGENTS
from services.reranker.domain import Agent

_WRITES: Final = "ragmesh_writes"
_WRITERS: Final = 0x7261676D657369  # "ragmesi": a key that other users of the database will not choose
_CONNECT_S: Final = 5.0


class Database:
    """A SQLite file or a PostgreSQL database with the tables of feedback.

    SQLite runs in WAL mode with ``synchronous=FULL``: a commit that returned has reached the disk. Writing
    transactions come one after the other, in PostgreSQL by an advisory lock, so that rows become visible in
    the order of their sequence numbers: who has read up to one has missed nothing before it.

    Args:
        url: database with an async driver, such as ``sqlite+aiosqlite:///FILE``.
        lock_timeout_s: how long a locked SQLite database is waited for. Seconds, [0, 60].
    """

    def __init__(self, url: URL, *, lock_timeout_s: float = 5.0) -> None:
        self._url = url
        self._lock_timeout_s = lock_timeout_s
        self._reader: AsyncEngine | None = None
        self._writer: AsyncEngine | None = None

    async def open(self) -> None:
        """Connects, and brings the tables to what this version knows.

        Raises:
            Unavailable: it cannot be reached or written, or was made by a later version of ragmesh.
        """
        if self._url.get_backend_name() == "sqlite":
            await self._make_folder()
            engine = create_async_engine(self._url, connect_args={"timeout": self._lock_timeout_s})
            event.listen(engine.sync_engine, "connect", _prepare_sqlite)
            event.listen(engine.sync_engine, "begin", _begin_sqlite)
            unlock_when_cancelled(engine)
            self._reader = engine
        else:
            # A server that was started again is noticed before a connection of before is used.
            engine = create_async_engine(
                self._url, pool_pre_ping=True, connect_args={"timeout": _CONNECT_S, "command_timeout": 60}
            )
            event.listen(engine.sync_engine, "begin", _begin_postgresql)
            # What one answer reads belongs together; in SQLite a transaction is so by itself.
            self._reader = engine.execution_options(isolation_level="REPEATABLE READ")
        self._writer = engine.execution_options(**{_WRITES: True})
        try:
            async with self.write() as connection:
                await connection.run_sync(SCHEMA.upgrade)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Lets go of all connections."""
        reader, self._reader, self._writer = self._reader, None, None
        if reader is not None:
            await reader.dispose()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that reads.

        Raises:
            Unavailable: the database cannot be reached, or failed.
        """
        if self._reader is None:
            raise Unavailable("STORE_UNAVAILABLE", "the database of feedback is not open")
        with unavailable():
            async with self._reader.connect() as connection:
                yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """The one transaction that writes; durable when the block has ended, undone if it raised.

        Raises:
            Unavailable: the database cannot be reached, or failed.
        """
        if self._writer is None:
            raise Unavailable("STORE_UNAVAILABLE", "the database of feedback is not open")
        with unavailable():
            async with self._writer.begin() as connection:
                yield connection

    def insert(self, table: Table) -> Any:
        """An INSERT that can be told what to do on a conflict."""
        insert = sqlite.insert if self._url.get_backend_name() == "sqlite" else postgresql.insert
        return insert(table)

    async def _make_folder(self) -> None:
        if not self._url.database or self._url.database.startswith("file:"):
            return
        path = Path(self._url.database)
        try:
            await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(
                "STORE_UNAVAILABLE", f"cannot make the folder {path.parent}: {error.strerror}"
            ) from error


async def agent_id(connection: AsyncConnection, agent: Agent) -> int | None:
    """The number of an agent; None if it was never heard of."""
    columns = AGENTS.c
    here = and_(
        columns.tenant == agent.tenant, columns.task_id == agent.task_id, columns.model_id == agent.model_id
    )
    found: int | None = await connection.scalar(select(columns.id).where(here))
    return found


def _prepare_sqlite(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    # The driver's own idea of transactions begins them late and never for SELECT; _begin_sqlite does it
    # instead.
    connection.isolation_level = None
    cursor = connection.cursor()
    write_ahead(cursor)
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA cache_size=-32768")  # KiB: the index of ids stays in memory as it grows
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A writer takes the lock at once: one that reads first and writes later may find that it cannot.
    connection.exec_driver_sql(
        "BEGIN IMMEDIATE" if connection.get_execution_options().get(_WRITES) else "BEGIN"
    )


def _begin_postgresql(connection: Connection) -> None:
    if connection.get_execution_options().get(_WRITES):
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS})")
