"""The outbox: observations on their way to the evaluator, kept on disk until it has acknowledged them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from meshkit.batching import MicroBatcher
from meshkit.compute import ComputePool
from meshkit.errors import Unavailable
from meshkit.security.caller import DEFAULT_TENANT
from meshkit.storage import Trouble, said, trouble_of

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS outbox (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    payload BLOB NOT NULL,
    refused TEXT,
    UNIQUE (tenant, id)
)
"""
_INDEX: Final = "CREATE INDEX IF NOT EXISTS outbox_of_tenant ON outbox (tenant, sequence)"
_COMMIT_SIZE: Final = 256
_LOCK_TIMEOUT_S: Final = 5.0

_REFUSED_KEPT: Final = 10_000
_REASONS: Final = {Trouble.FULL: "OUTBOX_DISK_FULL"}


@dataclass(frozen=True, slots=True)
class Letter:
    """One observation of a tenant on its way; ``sequence`` grows with every one kept."""

    sequence: int
    tenant: str
    id: str
    payload: bytes


class Outbox:
    """A queue of observations in SQLite, in WAL mode.

    What is kept survives the death of this process at once. By default it is not flushed to the disk commit
    by commit: a crash of the whole machine may take the last seconds with it, and in return the end of an ask
    does not wait for the disk (0.03 ms a commit instead of 0.2, and hundreds where the disk is busy). With
    ``flush`` it survives that too. Asks that end together share a commit. All statements run in one thread of
    their own. Processes may share a file: the evaluator takes every id once.

    Args:
        path: the file; its folder is made.
        capacity: most observations kept, [1, inf).
        max_bytes: largest size of the file, [65536, inf).
        flush: whether every commit reaches the disk before it counts.
        refused_kept: most letters kept that were set aside, [0, inf).
    """

    def __init__(
        self,
        path: Path,
        *,
        capacity: int,
        max_bytes: int = 2**30,
        flush: bool = False,
        refused_kept: int = _REFUSED_KEPT,
    ) -> None:
        self._path = path
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._refused_kept = refused_kept
        self._synchronous = "FULL" if flush else "NORMAL"
        self._size = 0
        self._connection: sqlite3.Connection | None = None
        self._thread = ComputePool(1, "outbox")
        self._commits: MicroBatcher[tuple[str, str, bytes], None] = MicroBatcher(
            self._append_all, max_size=_COMMIT_SIZE, max_delay_s=0.0
        )

    @property
    def size(self) -> int:
        """Observations waiting. Observations, [0, inf)."""
        return self._size

    async def open(self) -> None:
        """Opens the file, with whatever an earlier process left in it.

        Raises:
            Unavailable: it cannot be used.
        """
        await self._thread.run(self._open)

    async def append(self, tenant: str, id_: str, payload: bytes) -> None:
        """Keeps an observation; durable by the time it returns. One whose id its tenant has there already
        changes nothing.

        Raises:
            Unavailable: the outbox is full or cannot be written.
        """
        if self._size >= self._capacity:
            raise Unavailable(
                "OUTBOX_FULL",
                f"the outbox holds {self._capacity} observations, and no more before the evaluator is back",
            )
        await self._commits.submit((tenant, id_, payload))

    async def tenants(self) -> Sequence[str]:
        """Whose letters wait.

        Raises:
            Unavailable: the outbox cannot be read.
        """
        return await self._thread.run(self._tenants)

    async def waiting(self, tenant: str, *, after: int, limit: int) -> Sequence[Letter]:
        """At most ``limit`` letters of a tenant later than sequence number ``after``, oldest first.

        Raises:
            Unavailable: the outbox cannot be read.
        """
        return await self._thread.run(self._waiting, tenant, after, limit)

    async def remove(self, sequences: Sequence[int]) -> None:
        """Forgets letters that have arrived.

        Raises:
            Unavailable: the outbox cannot be written; they will be sent again, which does no harm.
        """
        await self._thread.run(self._remove, sequences)

    async def refuse(self, sequence: int, why: str) -> None:
        """Sets a letter aside that the evaluator will never take: kept in the file with the reason, not sent.

        The newest of those are kept, as many as ``refused_kept``: what nobody reads must not fill the disk.

        Raises:
            Unavailable: the outbox cannot be written.
        """
        await self._thread.run(self._refuse, sequence, why)

    async def close(self) -> None:
        """Keeps what is on its way and closes the file."""
        await self._commits.close()
        await self._thread.run(self._close)
        self._thread.close()

    async def _append_all(self, batch: Sequence[tuple[str, str, bytes]]) -> Sequence[None]:
        return await self._thread.run(self._append, batch)

    def _open(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(
                "OUTBOX_UNAVAILABLE", f"cannot make the folder {self._path.parent}: {error.strerror}"
            ) from error
        with _unavailable():
            connection = sqlite3.connect(
                self._path, timeout=_LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={self._synchronous}")
            (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
            connection.execute(f"PRAGMA max_page_count={self._max_bytes // page_bytes}")
            self._connection = connection
        with self._transaction():
            connection.execute(_SCHEMA)
            columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(outbox)")]
            if "tenant" not in columns:
                _give_tenants(connection)
            connection.execute(_INDEX)
        with _unavailable():
            self._size = self._count()

    def _count(self) -> int:
        (size,) = self._opened().execute("SELECT COUNT(*) FROM outbox WHERE refused IS NULL").fetchone()
        return int(size)

    def _append(self, batch: Sequence[tuple[str, str, bytes]]) -> Sequence[None]:
        with self._transaction() as connection:
            added = connection.executemany(
                "INSERT INTO outbox (tenant, id, payload) VALUES (?, ?, ?)"
                " ON CONFLICT (tenant, id) DO NOTHING",
                batch,
            ).rowcount
        self._size += added
        return [None] * len(batch)

    def _tenants(self) -> Sequence[str]:
        with _unavailable():
            self._size = self._count()  # another process may have brought some, or left others
            rows = self._opened().execute("SELECT DISTINCT tenant FROM outbox WHERE refused IS NULL")
            return [tenant for (tenant,) in rows]

    def _waiting(self, tenant: str, after: int, limit: int) -> Sequence[Letter]:
        with _unavailable():
            rows = self._opened().execute(
                "SELECT sequence, tenant, id, payload FROM outbox"
                " WHERE tenant = ? AND sequence > ? AND refused IS NULL ORDER BY sequence LIMIT ?",
                (tenant, after, limit),
            )
            return [Letter(*row) for row in rows]

    def _remove(self, sequences: Sequence[int]) -> None:
        with self._transaction() as connection:
            removed = connection.executemany(
                "DELETE FROM outbox WHERE sequence = ?", [(sequence,) for sequence in sequences]
            ).rowcount
        self._size -= removed

    def _refuse(self, sequence: int, why: str) -> None:
        with self._transaction() as connection:
            refused = connection.execute(
                "UPDATE outbox SET refused = ? WHERE sequence = ? AND refused IS NULL", (why, sequence)
            ).rowcount
            connection.execute(
                "DELETE FROM outbox WHERE refused IS NOT NULL AND sequence <= (SELECT sequence FROM outbox"
                " WHERE refused IS NOT NULL ORDER BY sequence DESC LIMIT 1 OFFSET ?)",
                (self._refused_kept,),
            )
        self._size -= refused

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise Unavailable("OUTBOX_UNAVAILABLE", "the outbox is not open")
        return self._connection

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._opened()
        with _unavailable():
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                # A disk that is full may have ended the transaction already.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise


def _give_tenants(connection: sqlite3.Connection) -> None:
    """Makes a file of before there were tenants one of now."""
    connection.execute("ALTER TABLE outbox RENAME TO outbox_before")
    connection.execute(_SCHEMA)
    connection.execute(
        "INSERT INTO outbox (sequence, tenant, id, payload, refused)"
        " SELECT sequence, ?, id, payload, refused FROM outbox_before ORDER BY sequence",
        (DEFAULT_TENANT,),
    )
    connection.execute("DROP TABLE outbox_before")


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        trouble = trouble_of(error)
        reason = _REASONS.get(trouble, f"OUTBOX_{trouble}")
        raise Unavailable(reason, said(trouble, "the outbox")) from error
