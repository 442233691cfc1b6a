"""The outbox: observations stored on disk until the evaluator has acknowledged them."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar

import grpc

from evenmesh.wire.errors import MeshError, Unavailable
from evenmesh_kit.compute.batching import MicroBatcher
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.storage import sqlite_file
from evenmesh_kit.storage.failures import DatabaseFailure, describe_failure, failure_of
from evenmesh_kit.storage.rights import keep_owners_rights
from evenmesh_orchestrator.observations import schema
from evenmesh_orchestrator.observations.shares import TENANT_SHARE, DynamicShares

P = ParamSpec("P")
T = TypeVar("T")

_COMMIT_SIZE: Final = 256
_LOCK_TIMEOUT_S: Final = 5.0
_READ_BYTES: Final = 4 * 2**20

# What a row costs besides its payload: it may keep a page of the file from being used otherwise, and it has
# entries in two indexes.
_ROW_BYTES: Final = 4_096 + 512
# Part of the file for entries that are set aside.
_SET_ASIDE_PART: Final = 8
_SET_ASIDE_SHARE: Final = 0.5
_MAX_SET_ASIDE: Final = 10_000
_REASONS: Final = {DatabaseFailure.FULL: "OUTBOX_DISK_FULL"}


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """A stored observation of a tenant.

    ``sequence`` grows with every entry. ``attempts`` counts deliveries that began and neither ended well nor
    for a reason that has nothing to do with the entry.
    """

    sequence: int
    tenant: str
    id: str
    payload: bytes
    attempts: int = 0


def _in_thread(
    method: Callable[Concatenate[Outbox, P], T],
) -> Callable[Concatenate[Outbox, P], Coroutine[Any, Any, T]]:
    """Run a method in the thread of the outbox."""

    @wraps(method)
    async def run(outbox: Outbox, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await outbox._thread.run(method, outbox, *args, **kwargs)

    return run


class Outbox:
    """A queue of observations in SQLite, in WAL mode; only its owner can read the file.

    A stored observation survives the death of this process. By default a commit is not flushed to the disk: a
    crash of the whole machine may lose the last seconds, and in return the end of an ask does not wait for
    the disk (0.03 ms per commit instead of 0.2, or hundreds on a busy disk). With ``flush`` it survives that
    too. Asks that end together share a commit. All statements run in one dedicated thread. Processes may
    share a file: the evaluator counts every id once.

    Tenants share it by :class:`~evenmesh_orchestrator.observations.shares.DynamicShares`, in entries and in
    bytes: however much one of them stores, there is room for the others. An eighth of the file is for entries
    that are set aside, of which a tenant's newest stay.

    Every method raises ``Unavailable`` if the file cannot be read or written, or is full.

    Args:
        path: the file; its folder is created.
        capacity: most observations stored, [1, inf).
        max_bytes: largest size of the file, [1048576, inf).
        tenant_share: largest part of both that one tenant can fill, (0, 1].
        flush: whether every commit waits for the disk.
        max_set_aside: most entries that are set aside, [0, inf).
    """

    def __init__(
        self,
        path: Path,
        *,
        capacity: int,
        max_bytes: int = 2**30,
        tenant_share: float = TENANT_SHARE,
        flush: bool = False,
        max_set_aside: int = _MAX_SET_ASIDE,
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._synchronous: Literal["FULL", "NORMAL"] = "FULL" if flush else "NORMAL"
        aside = max_bytes // _SET_ASIDE_PART
        self._waiting = _Holdings(capacity, max_bytes - aside, tenant_share)
        self._aside = _Holdings(max_set_aside, aside, _SET_ASIDE_SHARE)
        self._connection: sqlite3.Connection | None = None
        self._thread = ComputePool(1, "outbox")
        self._commits: MicroBatcher[tuple[str, str, bytes], None] = MicroBatcher(
            self._append, max_size=_COMMIT_SIZE, max_delay_s=0.0
        )

    @property
    def size(self) -> int:
        """Observations waiting. Observations, [0, inf)."""
        return self._waiting.entries.total

    @_in_thread
    def open(self) -> None:
        """Open the file, with the entries of earlier processes."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(
                "OUTBOX_UNAVAILABLE", f"cannot create the folder {self._path.parent}: {error.strerror}"
            ) from error
        with contextlib.suppress(OSError):  # found when the file is opened
            keep_owners_rights(self._path.parent)
        sqlite_file.make_private(self._path)
        with _unavailable():
            connection = sqlite_file.connect(
                self._path, synchronous=self._synchronous, timeout_s=_LOCK_TIMEOUT_S, threads=True
            )
            self._connection = connection
        with self._transaction():
            schema.upgrade(connection)
            # Write once, to find out now whether the file can be written: SQLite opens it for reading, too.
            connection.execute("DELETE FROM outbox_attempts WHERE sequence = 0")
        with _unavailable():
            (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
            connection.execute(f"PRAGMA max_page_count={self._max_bytes // page_bytes}")
            self._count()

    async def append(self, tenant: str, id_: str, payload: bytes, *, largest: int | None = None) -> None:
        """Store an observation; it is durable when this returns. A duplicate id of a tenant has no effect.

        Args:
            tenant: who asked.
            id_: of the observation.
            payload: the observation.
            largest: most bytes that the evaluator accepts; None if unknown.

        Raises:
            Unavailable: the tenant's share is full (``OUTBOX_FULL``), or the file cannot be written.
            MeshError: RESOURCE_EXHAUSTED, ``OBSERVATION_TOO_LARGE``: the evaluator could never accept it.
        """
        if largest is not None and len(payload) > largest:
            raise MeshError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "OBSERVATION_TOO_LARGE",
                f"the observation has {len(payload):,} bytes and the evaluator accepts {largest:,}",
            )
        await self._commits.submit((tenant, id_, payload))

    @_in_thread
    def tenants(self) -> Sequence[str]:
        """Return the tenants that have waiting entries; count again what other processes changed."""
        with _unavailable():
            return self._count()

    @_in_thread
    def waiting(
        self, tenant: str, *, after: int, limit: int, max_bytes: int = _READ_BYTES
    ) -> Sequence[OutboxEntry]:
        """Return entries of a tenant after sequence number ``after``, oldest first.

        At most ``limit``, and no more once they have ``max_bytes`` together.
        """
        found: list[OutboxEntry] = []
        num_bytes = 0
        with _unavailable():
            rows = self._opened().execute(
                "SELECT sequence, tenant, id, payload, COALESCE(attempts, 0)"
                " FROM outbox LEFT JOIN outbox_attempts USING (sequence)"
                " WHERE tenant = ? AND sequence > ? ORDER BY sequence LIMIT ?",
                (tenant, after, limit),
            )
            for row in rows:
                found.append(OutboxEntry(*row))
                num_bytes += len(found[-1].payload)
                if num_bytes >= max_bytes:
                    break
            rows.close()
        return found

    @_in_thread
    def begin(self, sequences: Sequence[int]) -> None:
        """Count an attempt to deliver each of some entries, durably."""
        with self._transaction() as connection:
            connection.executemany(
                "INSERT INTO outbox_attempts (sequence, attempts) SELECT sequence, 1 FROM outbox"
                " WHERE sequence = ? ON CONFLICT (sequence) DO UPDATE SET attempts = attempts + 1",
                [(sequence,) for sequence in sequences],
            )

    @_in_thread
    def withdraw(self, sequences: Sequence[int]) -> None:
        """Take an attempt back: its end had nothing to do with the entry."""
        keys = [(sequence,) for sequence in sequences]
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE outbox_attempts SET attempts = attempts - 1 WHERE sequence = ?", keys
            )
            connection.executemany("DELETE FROM outbox_attempts WHERE sequence = ? AND attempts <= 0", keys)

    @_in_thread
    def remove(self, sequences: Sequence[int]) -> None:
        """Delete entries that have arrived. If it fails, they are sent again, which is harmless."""
        with self._transaction() as connection:
            removed = [row for one in sequences for row in _deleted(connection, one, "tenant, bytes")]
        for tenant, num_bytes in removed:
            self._waiting.take(tenant, num_bytes)

    @_in_thread
    def set_aside(self, sequence: int, reason: str) -> None:
        """Set an entry aside that shall not be sent any more, with the reason.

        The oldest of its tenant make room for it. An observation for which there is no room is dropped, and
        the reason stays.
        """
        try:
            with self._transaction() as connection:
                query = "SELECT attempts FROM outbox_attempts WHERE sequence = ?"
                (attempts,) = connection.execute(query, (sequence,)).fetchone() or (0,)
                for tenant, id_, payload, num_bytes in _deleted(
                    connection, sequence, "tenant, id, payload, bytes"
                ):
                    self._waiting.take(tenant, num_bytes)
                    fits = self._make_room_aside(connection, tenant, num_bytes)
                    if fits is None:
                        continue
                    kept = (payload, num_bytes) if fits else (None, 0)
                    connection.execute(
                        "INSERT INTO outbox_set_aside (sequence, tenant, id, payload, bytes, reason,"
                        " attempts, at_us) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                        (sequence, tenant, id_, *kept, reason, attempts, time.time_ns() // 1000),
                    )
                    self._aside.put(tenant, num_bytes if fits else 0)
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._count()
            raise

    async def close(self) -> None:
        """Store pending observations and close the file."""
        await self._commits.close()
        await self._close()
        self._thread.close()

    def _count(self) -> list[str]:
        """Count what every tenant holds; return the tenants with waiting entries."""
        query = "SELECT tenant, COUNT(*), SUM(bytes) FROM {} GROUP BY tenant"
        waiting = self._opened().execute(query.format("outbox")).fetchall()
        self._waiting.replace(waiting)
        self._aside.replace(self._opened().execute(query.format("outbox_set_aside")).fetchall())
        return [tenant for tenant, *_ in waiting]

    @_in_thread
    def _append(self, batch: Sequence[tuple[str, str, bytes]]) -> Sequence[BaseException | None]:
        outcomes: list[BaseException | None] = []
        added: list[tuple[str, int]] = []
        try:
            with self._transaction() as connection:
                for tenant, id_, payload in batch:
                    if _is_stored(connection, tenant, id_):
                        outcomes.append(None)
                    elif not self._waiting.fits(tenant, len(payload)):
                        outcomes.append(_full(tenant))
                    else:
                        connection.execute(
                            "INSERT INTO outbox (tenant, id, payload, bytes) VALUES (?, ?, ?, ?)",
                            (tenant, id_, payload, len(payload)),
                        )
                        self._waiting.put(tenant, len(payload))
                        added.append((tenant, len(payload)))
                        outcomes.append(None)
        except BaseException:
            for tenant, num_bytes in added:
                self._waiting.take(tenant, num_bytes)
            raise
        return outcomes

    def _make_room_aside(self, connection: sqlite3.Connection, tenant: str, num_bytes: int) -> bool | None:
        """Remove the oldest entries of a tenant that are set aside until another fits.

        Returns:
            Whether its observation fits; None if not even the reason does.
        """
        while not self._aside.fits(tenant, num_bytes):
            oldest = connection.execute(
                "DELETE FROM outbox_set_aside WHERE sequence = (SELECT MIN(sequence) FROM outbox_set_aside"
                " WHERE tenant = ?) RETURNING bytes",
                (tenant,),
            ).fetchall()
            if not oldest:
                return False if self._aside.fits(tenant, 0) else None
            self._aside.take(tenant, oldest[0][0])
        return True

    @_in_thread
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
                # A full disk may have ended the transaction already.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise


class _Holdings:
    """What tenants hold of a part of the file, in entries and in bytes with what their rows cost."""

    def __init__(self, max_entries: int, max_bytes: int, share: float) -> None:
        self.entries = DynamicShares(max_entries, share)
        self._bytes = DynamicShares(max_bytes, share)

    def fits(self, tenant: str, num_bytes: int) -> bool:
        return self.entries.room(tenant) >= 1 and self._bytes.room(tenant) >= num_bytes + _ROW_BYTES

    def put(self, tenant: str, num_bytes: int) -> None:
        self.entries.add(tenant, 1)
        self._bytes.add(tenant, num_bytes + _ROW_BYTES)

    def take(self, tenant: str, num_bytes: int) -> None:
        self.entries.add(tenant, -1)
        self._bytes.add(tenant, -num_bytes - _ROW_BYTES)

    def replace(self, rows: Sequence[tuple[str, int, int]]) -> None:
        self.entries.replace({tenant: count for tenant, count, _ in rows})
        self._bytes.replace({tenant: size + count * _ROW_BYTES for tenant, count, size in rows})


def _is_stored(connection: sqlite3.Connection, tenant: str, id_: str) -> bool:
    query = (
        "SELECT 1 FROM outbox WHERE tenant = ?1 AND id = ?2"
        " UNION ALL SELECT 1 FROM outbox_set_aside WHERE tenant = ?1 AND id = ?2 LIMIT 1"
    )
    return connection.execute(query, (tenant, id_)).fetchone() is not None


def _deleted(connection: sqlite3.Connection, sequence: int, columns: str) -> list[tuple[Any, ...]]:
    """Delete a waiting entry with its attempts; return its columns, or nothing if it is gone already."""
    connection.execute("DELETE FROM outbox_attempts WHERE sequence = ?", (sequence,))
    return connection.execute(
        f"DELETE FROM outbox WHERE sequence = ? RETURNING {columns}",  # noqa: S608 - our own names
        (sequence,),
    ).fetchall()


def _full(tenant: str) -> Unavailable:
    return Unavailable(
        "OUTBOX_FULL", f"tenant {tenant} has filled its share of the outbox until the evaluator is back"
    )


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        failure = failure_of(error)
        reason = _REASONS.get(failure, f"OUTBOX_{failure}")
        raise Unavailable(reason, describe_failure(failure, "the outbox")) from error
