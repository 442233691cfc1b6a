"""One SQL database of a service: engines, transactions, schema and failures, for SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import URL, BigInteger, Connection, Integer, String, Table, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection, ExceptionContext
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from evenmesh.wire import deadline
from evenmesh.wire.errors import Unavailable
from evenmesh_kit.compute.tenant_places import TenantPlaces
from evenmesh_kit.storage.failures import DatabaseFailure, StoreFailure, cause_of, failure_of
from evenmesh_kit.storage.migrations import Schema, compatible
from evenmesh_kit.storage.postgresql_url import for_driver
from evenmesh_kit.storage.sqlite import unlock_when_cancelled, write_ahead

CONNECTIONS: Final = 15
"""Most connections that a process has to one database; callers beyond wait for one, tenants in turns."""
ROW_ID: Final = BigInteger().with_variant(Integer, "sqlite")
"""Type of a key that the database numbers itself; SQLite does so only in an INTEGER key."""

_KEPT: Final = 5  # of them open while nobody needs them
_READERS_SHARE: Final = 0.5
_WRITES: Final = "evenmesh_writes"
_CONNECT_S: Final = 5.0
_STATEMENT_S: Final = 60.0
_MIGRATING_S: Final = 4 * 3600.0  # of a statement that builds an index of a large table, say
_OPENING_S: Final = 300.0
_WAIT_S: Final = 45.0  # less than a statement has, so that one that waits for a writer says so
_IDLE_S: Final = 60.0  # merging the aggregates of a million passages takes seconds
T = TypeVar("T")

_log = logging.getLogger("evenmesh.kit.storage")


def text_type() -> Any:
    """Return a text type compared by code points, as Python and SQLite do, whatever the database's locale."""
    return String().with_variant(postgresql.VARCHAR(collation="C"), "postgresql")


def now_us() -> int:
    """Return the time now. Microseconds since 1970."""
    return time.time_ns() // 1000


def chunks(values: Sequence[T], size: int = 10_000) -> Iterator[Sequence[T]]:
    """Yield parts of a sequence, small enough for the parameters of one ``SELECT … IN``."""
    for begin in range(0, len(values), size):
        yield values[begin : begin + size]


class SqlDatabase:
    """A SQLite file or a PostgreSQL database with the tables of one schema; processes may share it.

    SQLite runs in WAL mode with ``synchronous=FULL``: a commit that returned has reached the disk. Writing
    transactions run one after the other, in PostgreSQL by an advisory lock: none waits for another's rows,
    which two could do forever, and rows become visible in the order of their sequence numbers, so a reader
    that has read up to one has missed none before it.

    Within a process one transaction writes at a time and one less than the connections read; no tenant has
    more than half of these. Callers wait for their turn, tenants in turns, and at most until their deadline.
    So no block that reads or writes may begin another one.

    In PostgreSQL a writing transaction is READ COMMITTED whatever the server's default is: its statements see
    what the writer before it committed. A snapshot would be older than the lock, and fail at what it missed.
    A reading one is REPEATABLE READ: all that it reads is of one moment, as in SQLite. A process that stops
    within its transaction, or whose machine is gone, loses the lock after 60 s without a statement.

    Processes of two versions may share a database while one replaces the other. Once the later one has
    migrated it to another number (:class:`~evenmesh_kit.storage.migrations.Schema`), the earlier one writes
    no more: its statements could work and still leave out what the new schema counts.

    Args:
        url: database with an async driver, such as ``sqlite+aiosqlite:///FILE``; one of PostgreSQL may have
            parameters of libpq, such as ``sslmode``.
        schema: what its tables are.
        lock_timeout_s: how long to wait for a locked SQLite database. Seconds, [0, 60].
        cache_kib: page cache of each SQLite connection, for the index of ids. KiB, [1, inf).
    """

    def __init__(
        self, url: URL, schema: Schema, *, lock_timeout_s: float = 5.0, cache_kib: int = 32_768
    ) -> None:
        self._url = url
        self._schema = schema
        self._what = f"the database of {schema.what}"
        self._lock_timeout_s = lock_timeout_s
        self._cache_kib = cache_kib
        self._is_sqlite = url.get_backend_name() == "sqlite"
        # A key of this store's own: several stores may share a PostgreSQL database.
        digest = hashlib.sha256(schema.version_table.encode()).digest()
        self._lock_key = int.from_bytes(digest[:8], "big", signed=True)
        self._readers = TenantPlaces(CONNECTIONS - 1, share=_READERS_SHARE, where=self._what)
        self._writers = TenantPlaces(1, share=1.0, where=self._what)
        self._reader: AsyncEngine | None = None
        self._writer: AsyncEngine | None = None
        self._revision: str | None = None
        self._failing: set[str] = set()

    async def open(self) -> None:
        """Connect and bring the tables to the schema of this version.

        Raises:
            Unavailable: it cannot be reached or written, or was made by a later version of evenmesh.
        """
        if self._is_sqlite:
            await self._make_folder()
            engine = create_async_engine(self._url, connect_args={"timeout": self._lock_timeout_s})
            event.listen(engine.sync_engine, "connect", self._prepare_sqlite)
            unlock_when_cancelled(engine)
            self._reader = engine
        else:
            # The ping finds a restarted server before an old connection is used.
            engine = self._postgresql(
                _STATEMENT_S, pool_pre_ping=True, pool_size=_KEPT, max_overflow=CONNECTIONS - _KEPT
            )
            # One answer reads one snapshot; a transaction of SQLite does so anyway.
            self._reader = engine.execution_options(isolation_level="REPEATABLE READ")
        event.listen(engine.sync_engine, "begin", self._begin)
        self._writer = self._writing(engine)
        try:
            self._revision = await self._upgrade()
        except BaseException:
            await self.close()
            raise

    async def _upgrade(self) -> str | None:
        """Migrate, or wait until another process has: of a large database that takes minutes."""
        ends = time.monotonic() + _OPENING_S
        while True:
            try:
                async with self._transaction() as connection:
                    if self._is_sqlite or not await connection.run_sync(self._schema.is_older):
                        return await connection.run_sync(self._schema.upgrade)
                async with self._migrating() as connection:
                    return await connection.run_sync(self._schema.upgrade)
            except StoreFailure as error:
                # Migrating also takes tables from readers of an earlier version, which PostgreSQL may decide.
                locked = error.failure is DatabaseFailure.LOCKED and not self._is_sqlite
                if not locked or time.monotonic() >= ends:
                    raise

    async def close(self) -> None:
        """Close all connections."""
        reader, self._reader, self._writer = self._reader, None, None
        if reader is not None:
            await reader.dispose()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """Run the block in a transaction that reads.

        Raises:
            Unavailable: the database cannot be reached, or failed.
            DeadlineExceeded: its turn did not come in time.
        """
        async with self._readers.hold(deadline.current()):
            with self._failures("read"):
                async with self._opened(self._reader).connect() as connection:
                    yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """Run the block in the one transaction that writes: durable at the end, undone if the block raises.

        Raises:
            Unavailable: the database cannot be reached, or failed; or another version of evenmesh has
            migrated it since (reason ``STORE_VERSION``).
            DeadlineExceeded: its turn did not come in time.
        """
        async with self._writers.hold(deadline.current()), self._transaction() as connection:
            found = await connection.run_sync(self._schema.revision)
            if not compatible(found, self._revision):
                raise Unavailable(
                    "STORE_VERSION",
                    f"{self._what} now has schema {found}, and this process knows {self._revision}: another "
                    "version of evenmesh has migrated it, so replace this one with that",
                )
            yield connection

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        with self._failures("written"):
            async with self._opened(self._writer).begin() as connection:
                yield connection

    @asynccontextmanager
    async def _migrating(self) -> AsyncIterator[AsyncConnection]:
        """Run the block in a transaction that writes, whose statements may take hours."""
        engine = self._postgresql(_MIGRATING_S, poolclass=NullPool)
        event.listen(engine.sync_engine, "begin", self._begin)
        try:
            with self._failures("written"):
                async with self._writing(engine).begin() as connection:
                    yield connection
        finally:
            await engine.dispose()

    def _postgresql(self, statement_s: float, **options: Any) -> AsyncEngine:
        """Return an engine for PostgreSQL, each of whose statements has so many seconds."""
        url, arguments = for_driver(self._url)
        times = {"timeout": _CONNECT_S, "command_timeout": statement_s}
        engine = create_async_engine(url, connect_args={**arguments, **times}, **options)
        event.listen(engine.sync_engine, "handle_error", _leave_if_read_only)
        return engine

    def _writing(self, engine: AsyncEngine) -> AsyncEngine:
        """Return an engine whose transactions write."""
        writer = engine.execution_options(**{_WRITES: True})
        return writer if self._is_sqlite else writer.execution_options(isolation_level="READ COMMITTED")

    def insert(self, table: Table) -> Any:
        """Return an INSERT of the database's dialect, which has ``on_conflict_do_update``."""
        return sqlite.insert(table) if self._is_sqlite else postgresql.insert(table)

    def _opened(self, engine: AsyncEngine | None) -> AsyncEngine:
        if engine is None:
            raise Unavailable("STORE_UNAVAILABLE", f"{self._what} is not open")
        return engine

    @contextmanager
    def _failures(self, used: str) -> Iterator[None]:
        """Translate what the database raises; log the first failure after a success, and the next success."""
        try:
            yield
        except (SQLAlchemyError, OSError) as error:
            failure = StoreFailure(error, self._what)
            if used not in self._failing:
                self._failing.add(used)
                _log.warning("%s (%s)", failure.message, cause_of(error), extra={"reason": failure.reason})
            raise failure from error
        if used in self._failing:
            self._failing.discard(used)
            _log.info("%s can be %s again", self._what, used)

    async def _make_folder(self) -> None:
        if not self._url.database or self._url.database.startswith("file:"):
            return
        folder = Path(self._url.database).parent
        try:
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(
                "STORE_UNAVAILABLE", f"cannot make the folder {folder}: {error.strerror}"
            ) from error

    def _prepare_sqlite(self, connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        # The driver would begin transactions late, and never for SELECT; _begin does it instead.
        connection.isolation_level = None
        write_ahead(connection)
        cursor = connection.cursor()
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute(f"PRAGMA cache_size=-{self._cache_kib}")
        cursor.close()

    def _begin(self, connection: Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES)
        if self._is_sqlite:
            # A writer takes the lock at once: after a read it might be unable to.
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
        elif writes:
            # Of this transaction, and not of the connection, which may be a pooler's.
            connection.exec_driver_sql(
                f"SELECT set_config('lock_timeout', '{_WAIT_S * 1000:.0f}ms', true),"
                f" set_config('idle_in_transaction_session_timeout', '{_IDLE_S * 1000:.0f}ms', true),"
                f" pg_advisory_xact_lock({self._lock_key})"
            )


def _leave_if_read_only(context: ExceptionContext) -> None:
    """Replace all connections after a write that PostgreSQL refused as read-only.

    A session keeps the default that it began with, and after a failover the address may lead elsewhere.
    """
    if failure_of(context.original_exception) is DatabaseFailure.READ_ONLY:
        context.is_disconnect = True
