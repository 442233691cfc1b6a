"""The database of conversations: opened when it can be, with bounded waits and its own clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import AsyncConnection

from evenmesh.wire.errors import Unavailable
from evenmesh_kit.storage.sql import SqlDatabase, now_us
from evenmesh_kit.storage.sqlite_file import make_private
from evenmesh_orchestrator.conversations.sql.schema import SCHEMA

_CACHE_KIB: Final = 2_048
_WAIT_S: Final = 10.0
"""Longest time of a transaction. Seconds."""


class Database:
    """The SQLite file or PostgreSQL database with the tables of conversations.

    It is opened by the first transaction that reaches it, so an orchestrator starts without it.

    Args:
        url: database with an async driver, such as ``sqlite+aiosqlite:///FILE``.
        clock: the time, in microseconds since 1970; None for the database server's own, as clocks of several
            machines differ.
    """

    def __init__(self, url: URL, *, clock: Callable[[], int] | None = None) -> None:
        self._database = SqlDatabase(url, SCHEMA, cache_kib=_CACHE_KIB)
        is_sqlite = url.get_backend_name() == "sqlite"
        self._file = Path(url.database) if is_sqlite and url.database else None
        self._clock = now_us if clock is None and is_sqlite else clock
        self._opening = asyncio.Lock()
        self._is_open = self._is_closed = False
        self.insert = self._database.insert

    async def open(self) -> None:
        """Connect, unless it is connected, and bring the tables to the schema of this version.

        Raises:
            Unavailable: it cannot be reached or written, or was made by a later version of evenmesh.
        """
        async with self._opening:
            if self._is_closed:
                raise Unavailable("STORE_UNAVAILABLE", "this orchestrator is about to end")
            if not self._is_open:
                if self._file is not None:
                    await asyncio.to_thread(_make_private, self._file)
                await self._database.open()
                self._is_open = True

    async def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        await self._database.close()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """Run the block in a transaction that reads.

        Raises:
            Unavailable: the database cannot be reached, failed, or took too long.
        """
        async with self._within(), self._database.read() as connection:
            yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[tuple[AsyncConnection, int]]:
        """Run the block in the one transaction that writes, with the time now in microseconds since 1970.

        Raises:
            Unavailable: the database cannot be reached, failed, or took too long.
        """
        async with self._within(), self._database.write() as connection:
            yield connection, await self._now(connection)

    @asynccontextmanager
    async def _within(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(_WAIT_S):
                await self.open()
                yield
        except TimeoutError as error:
            raise Unavailable(
                "STORE_UNAVAILABLE",
                f"the database of conversations did not answer within {_WAIT_S:g} s: check its server",
            ) from error

    async def _now(self, connection: AsyncConnection) -> int:
        if self._clock is not None:
            return self._clock()
        # The time of the statement, not that of the transaction, which may have waited for others.
        query = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)"
        return int(await connection.scalar(text(query)))


def _make_private(path: Path) -> None:
    """Create the file, which holds what users said, and its folder if missing; let no other use it."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    make_private(path)
