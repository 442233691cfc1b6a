"""Observations and run aggregates in SQL through SQLAlchemy: SQLite in WAL mode, or PostgreSQL."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Connection,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    String,
    Table,
    case,
    event,
    func,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from meshkit.errors import Unavailable
from services.evaluator.domain import (
    ExposureShare,
    Measurement,
    Observation,
    RunReport,
    RunSummary,
    Stage,
)
from services.evaluator.moments import Moments

SCHEMA_VERSION: Final = 1
"""Version of the tables below; SQLite files carry it as ``user_version``."""

_METADATA: Final = MetaData()
_BIG: Final = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows only in an INTEGER key

OBSERVATIONS: Final = Table(
    "observations",
    _METADATA,
    Column("id", String(128), primary_key=True),
    Column("run_id", String(128), nullable=False),
    Column("query_id", String(128), nullable=False),
    Column("observed_at_us", BigInteger, nullable=False),
    Column("stored_at_us", BigInteger, nullable=False),
    Column("collection", String, nullable=False),
    Column("retriever", String, nullable=False),
    Column("reranker", String, nullable=False),
    Column("generator", String, nullable=False),
    Column("alpha", Double),
    Column("num_rankings", Integer, nullable=False),
    Column("num_unanswered", Integer, nullable=False),
    Column("ee_d", Double),
    Column("ee_d_norm", Double),
    Column("ee_r", Double),
    Column("ee_r_norm", Double),
    Column("expected_utility", Double),
    Column("payload", LargeBinary, nullable=False),
)
"""Every observation once: what it is grouped by, what it measured, and all of it as it came (a proto)."""

RUNS: Final = Table(
    "runs",
    _METADATA,
    Column("sequence", _BIG, primary_key=True, autoincrement=True),
    Column("run_id", String(128), nullable=False, unique=True),
    Column("num_observations", BigInteger, nullable=False),
    Column("num_rankings", BigInteger, nullable=False),
    Column("num_unanswered", BigInteger, nullable=False),
    Column("started_at_us", BigInteger, nullable=False),
    Column("updated_at_us", BigInteger, nullable=False),
)
"""Counts of each run. A writer touches this row first, so that it holds the run until it commits."""

RUN_MOMENTS: Final = Table(
    "run_moments",
    _METADATA,
    Column("run_id", String(128), primary_key=True),
    Column("quantity", String(64), primary_key=True),
    Column("count", BigInteger, nullable=False),
    Column("undefined", BigInteger, nullable=False),
    Column("mean", Double, nullable=False),
    Column("m2", Double, nullable=False),
)
"""Moments of each measured quantity of a run; ``stage:NAME`` is that stage's time in milliseconds."""

RUN_PROVIDERS: Final = Table(
    "run_providers",
    _METADATA,
    Column("run_id", String(128), primary_key=True),
    Column("provider", String, primary_key=True),
    Column("exposure", Double, nullable=False),
    Column("target", Double),
)
"""Summed exposure per provider of a run; an empty name collects passages of unknown providers."""

RUN_DEGRADATIONS: Final = Table(
    "run_degradations",
    _METADATA,
    Column("run_id", String(128), primary_key=True),
    Column("stage", String(32), primary_key=True),
    Column("reason", String(128), primary_key=True),
    Column("count", BigInteger, nullable=False),
)
"""Degradations counted per run."""

_STAGE_PREFIX: Final = "stage:"
_WRITES: Final = "ragmesh_writes"
_CHUNK: Final = 400  # keys per SELECT … IN, below every database's limit of parameters

_REASONS: Final[dict[int, tuple[str, str]]] = {
    sqlite3.SQLITE_FULL: ("STORE_FULL", "the disk that observations are kept on is full"),
    sqlite3.SQLITE_READONLY: ("STORE_READ_ONLY", "the database of observations is read-only"),
    sqlite3.SQLITE_PERM: ("STORE_READ_ONLY", "the database of observations may not be written"),
    sqlite3.SQLITE_BUSY: ("STORE_LOCKED", "the database of observations is locked by another process"),
    sqlite3.SQLITE_LOCKED: ("STORE_LOCKED", "the database of observations is locked"),
}


class SqlObservationStore:
    """An :class:`services.evaluator.ports.ObservationStore` in a SQL database.

    SQLite runs in WAL mode with ``synchronous=FULL``: a commit that returned has reached the disk. Ids are
    made idempotent by the primary key, so several evaluators may share one PostgreSQL database.

    Args:
        url: database with an async driver, such as ``sqlite+aiosqlite:///FILE``.
        lock_timeout_s: how long a locked SQLite database is waited for. Seconds, [0, 60].
    """

    def __init__(self, url: URL, *, lock_timeout_s: float = 5.0) -> None:
        self._url = url
        self._lock_timeout_s = lock_timeout_s
        self._insert = postgresql.insert if url.get_backend_name() == "postgresql" else sqlite.insert
        self._reader: AsyncEngine | None = None
        self._writer: AsyncEngine | None = None

    async def open(self) -> None:
        """See the port."""
        is_sqlite = self._url.get_backend_name() == "sqlite"
        arguments: dict[str, Any] = {"timeout": self._lock_timeout_s} if is_sqlite else {}
        if is_sqlite and self._url.database:
            path = Path(self._url.database)
            try:
                await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
            except OSError as error:
                raise Unavailable(
                    "STORE_UNAVAILABLE", f"cannot make the folder {path.parent}: {error.strerror}"
                ) from error
        engine = create_async_engine(self._url, connect_args=arguments)
        if is_sqlite:
            event.listen(engine.sync_engine, "connect", _prepare_sqlite)
            event.listen(engine.sync_engine, "begin", _begin_sqlite)
        self._reader, self._writer = engine, engine.execution_options(**{_WRITES: True})
        try:
            with _unavailable():
                async with self._writer.begin() as connection:
                    await connection.run_sync(_METADATA.create_all)
                    if is_sqlite:
                        # Also the one write that shows at once whether the file can be written at all.
                        await connection.exec_driver_sql(f"PRAGMA user_version={SCHEMA_VERSION}")
        except Unavailable:
            await self.close()
            raise

    async def close(self) -> None:
        """See the port."""
        if self._reader is not None:
            await self._reader.dispose()

    async def append(self, batch: Sequence[tuple[Observation, Measurement]]) -> Sequence[bool]:
        """See the port."""
        first: dict[str, tuple[Observation, Measurement]] = {}
        for item in batch:
            first.setdefault(item[0].id, item)
        with _unavailable():
            async with self._open_writer().begin() as connection:
                new = await self._insert_observations(connection, list(first.values()))
                runs: dict[str, list[tuple[Observation, Measurement]]] = defaultdict(list)
                for id_, item in first.items():
                    if id_ in new:
                        runs[item[0].run_id].append(item)
                if runs:
                    # One order for every writer, so that two of them never wait for each other.
                    await self._move_runs(connection, dict(sorted(runs.items())))
        stored = []
        for observation, _ in batch:
            stored.append(observation.id in new)
            new.discard(observation.id)
        return stored

    async def report(self, run_id: str, *, max_providers: int) -> RunReport | None:
        """See the port."""
        with _unavailable():
            async with self._open_reader().connect() as connection:
                run = (await connection.execute(select(RUNS).where(RUNS.c.run_id == run_id))).first()
                if run is None:
                    return None
                moments = await connection.execute(select(RUN_MOMENTS).where(RUN_MOMENTS.c.run_id == run_id))
                estimates = {row.quantity: _moments(row).estimate() for row in moments}
                of_run = RUN_PROVIDERS.c.run_id == run_id
                total = (
                    await connection.scalar(select(func.sum(RUN_PROVIDERS.c.exposure)).where(of_run)) or 0.0
                )
                providers = await connection.execute(
                    select(RUN_PROVIDERS)
                    .where(of_run, RUN_PROVIDERS.c.provider != "")
                    .order_by(RUN_PROVIDERS.c.exposure.desc(), RUN_PROVIDERS.c.provider)
                    .limit(max_providers)
                )
                shares = [
                    ExposureShare(
                        row.provider, row.exposure, row.exposure / total if total else 0.0, row.target
                    )
                    for row in providers
                ]
                degradations = await connection.execute(
                    select(RUN_DEGRADATIONS)
                    .where(RUN_DEGRADATIONS.c.run_id == run_id)
                    .order_by(RUN_DEGRADATIONS.c.stage, RUN_DEGRADATIONS.c.reason)
                )
                return RunReport(
                    run_id=run_id,
                    num_observations=run.num_observations,
                    num_rankings=run.num_rankings,
                    num_unanswered=run.num_unanswered,
                    started_at_us=run.started_at_us,
                    updated_at_us=run.updated_at_us,
                    estimates={q: e for q, e in estimates.items() if not q.startswith(_STAGE_PREFIX)},
                    stages={
                        stage: estimates[_STAGE_PREFIX + stage]
                        for stage in Stage
                        if _STAGE_PREFIX + stage in estimates
                    },
                    providers=shares,
                    degradations=[
                        (Stage(row.stage), row.reason, row._mapping["count"]) for row in degradations
                    ],
                )

    async def runs(self, *, before: int | None, limit: int) -> Sequence[RunSummary]:
        """See the port."""
        query = select(RUNS).order_by(RUNS.c.sequence.desc()).limit(limit)
        if before is not None:
            query = query.where(RUNS.c.sequence < before)
        with _unavailable():
            async with self._open_reader().connect() as connection:
                return [
                    RunSummary(
                        row.sequence, row.run_id, row.num_observations, row.started_at_us, row.updated_at_us
                    )
                    for row in await connection.execute(query)
                ]

    async def _insert_observations(
        self, connection: AsyncConnection, batch: Sequence[tuple[Observation, Measurement]]
    ) -> set[str]:
        """Inserts what is not there yet and returns its ids; the database decides between evaluators too."""
        now_us = time.time_ns() // 1000
        rows = [
            {
                "id": observation.id,
                "run_id": observation.run_id,
                "query_id": observation.query_id,
                "observed_at_us": observation.observed_at_us,
                "stored_at_us": now_us,
                "collection": observation.collection,
                "retriever": observation.retriever,
                "reranker": observation.reranker,
                "generator": observation.generator,
                "alpha": observation.alpha,
                "num_rankings": measurement.num_rankings,
                "num_unanswered": measurement.num_unanswered,
                **measurement.quantities,
                "payload": observation.payload,
            }
            for observation, measurement in batch
        ]
        statement = self._insert(OBSERVATIONS).on_conflict_do_nothing(index_elements=["id"])
        return set((await connection.scalars(statement.returning(OBSERVATIONS.c.id), rows)).all())

    async def _move_runs(
        self, connection: AsyncConnection, runs: Mapping[str, Sequence[tuple[Observation, Measurement]]]
    ) -> None:
        await self._upsert_counts(connection, runs)
        await self._upsert_moments(connection, runs)
        providers: dict[tuple[str, str], tuple[float, float | None]] = {}
        degradations: dict[tuple[str, str, str], int] = defaultdict(int)
        for run_id, items in runs.items():
            for observation, measurement in items:
                for provider, share in measurement.providers.items():
                    exposure, target = providers.get((run_id, provider), (0.0, None))
                    if share.target is not None:
                        target = (target or 0.0) + share.target
                    providers[run_id, provider] = (exposure + share.exposure, target)
                for stage, reason in observation.degradations:
                    degradations[run_id, stage.value, reason] += 1
        if providers:
            statement = self._insert(RUN_PROVIDERS)
            new, old = statement.excluded, RUN_PROVIDERS.c
            await connection.execute(
                statement.on_conflict_do_update(
                    index_elements=["run_id", "provider"],
                    set_={
                        "exposure": old.exposure + new.exposure,
                        # Unknown plus something is that something; unknown plus unknown stays unknown.
                        "target": func.coalesce(old.target + new.target, old.target, new.target),
                    },
                ),
                [
                    {"run_id": run_id, "provider": provider, "exposure": exposure, "target": target}
                    for (run_id, provider), (exposure, target) in providers.items()
                ],
            )
        if degradations:
            statement = self._insert(RUN_DEGRADATIONS)
            await connection.execute(
                statement.on_conflict_do_update(
                    index_elements=["run_id", "stage", "reason"],
                    set_={"count": RUN_DEGRADATIONS.c.count + statement.excluded.count},
                ),
                [
                    {"run_id": run_id, "stage": stage, "reason": reason, "count": count}
                    for (run_id, stage, reason), count in degradations.items()
                ],
            )

    async def _upsert_counts(
        self, connection: AsyncConnection, runs: Mapping[str, Sequence[tuple[Observation, Measurement]]]
    ) -> None:
        statement = self._insert(RUNS)
        new, old = statement.excluded, RUNS.c
        await connection.execute(
            statement.on_conflict_do_update(
                index_elements=["run_id"],
                set_={
                    "num_observations": old.num_observations + new.num_observations,
                    "num_rankings": old.num_rankings + new.num_rankings,
                    "num_unanswered": old.num_unanswered + new.num_unanswered,
                    "started_at_us": case(
                        (new.started_at_us < old.started_at_us, new.started_at_us), else_=old.started_at_us
                    ),
                    "updated_at_us": case(
                        (new.updated_at_us > old.updated_at_us, new.updated_at_us), else_=old.updated_at_us
                    ),
                },
            ),
            [
                {
                    "run_id": run_id,
                    "num_observations": len(items),
                    "num_rankings": sum(measurement.num_rankings for _, measurement in items),
                    "num_unanswered": sum(measurement.num_unanswered for _, measurement in items),
                    "started_at_us": min(observation.observed_at_us for observation, _ in items),
                    "updated_at_us": max(observation.observed_at_us for observation, _ in items),
                }
                for run_id, items in runs.items()
            ],
        )

    async def _upsert_moments(
        self, connection: AsyncConnection, runs: Mapping[str, Sequence[tuple[Observation, Measurement]]]
    ) -> None:
        values: dict[tuple[str, str], list[float | None]] = defaultdict(list)
        for run_id, items in runs.items():
            for observation, measurement in items:
                for quantity, value in measurement.quantities.items():
                    values[run_id, quantity].append(value)
                for stage, milliseconds in observation.stage_ms.items():
                    values[run_id, _STAGE_PREFIX + stage].append(milliseconds)
        moments = {key: Moments.of(column) for key, column in values.items()}
        run_ids = list(runs)
        for start in range(0, len(run_ids), _CHUNK):
            known = await connection.execute(
                select(RUN_MOMENTS).where(RUN_MOMENTS.c.run_id.in_(run_ids[start : start + _CHUNK]))
            )
            for row in known:
                key = (row.run_id, row.quantity)
                if key in moments:
                    moments[key] = _moments(row).merged(moments[key])
        statement = self._insert(RUN_MOMENTS)
        new = statement.excluded
        await connection.execute(
            statement.on_conflict_do_update(
                index_elements=["run_id", "quantity"],
                set_={"count": new.count, "undefined": new.undefined, "mean": new.mean, "m2": new.m2},
            ),
            [
                {
                    "run_id": run_id,
                    "quantity": quantity,
                    "count": one.count,
                    "undefined": one.undefined,
                    "mean": one.mean,
                    "m2": one.m2,
                }
                for (run_id, quantity), one in moments.items()
            ],
        )

    def _open_writer(self) -> AsyncEngine:
        if self._writer is None:
            raise Unavailable("STORE_UNAVAILABLE", "the store of observations is not open")
        return self._writer

    def _open_reader(self) -> AsyncEngine:
        if self._reader is None:
            raise Unavailable("STORE_UNAVAILABLE", "the store of observations is not open")
        return self._reader


def _moments(row: Row[Any]) -> Moments:
    # Rows are tuples, which have a method called count.
    return Moments(row._mapping["count"], row.undefined, row.mean, row.m2)


def _prepare_sqlite(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    # The driver's own idea of transactions begins them late and never for SELECT; _begin_sqlite does it
    # instead.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA cache_size=-65536")  # KiB: the index of ids stays in memory as it grows
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A writer takes the lock at once: one that reads first and writes later may find that it cannot.
    connection.exec_driver_sql(
        "BEGIN IMMEDIATE" if connection.get_execution_options().get(_WRITES) else "BEGIN"
    )


@contextmanager
def _unavailable() -> Iterator[None]:
    """Turns what a database can raise for reasons outside this program into Unavailable."""
    try:
        yield
    except DBAPIError as error:
        reason, message = _explain(error)
        raise Unavailable(reason, message) from error
    except (SQLAlchemyError, OSError) as error:  # no connection to be had
        raise Unavailable("STORE_UNAVAILABLE", "the database of observations cannot be reached") from error


def _explain(error: DBAPIError) -> tuple[str, str]:
    cause: BaseException | None = error.orig
    while cause is not None:
        code = getattr(cause, "sqlite_errorcode", None)
        if isinstance(code, int):
            # The low byte is the primary code, the rest says which variety.
            return _REASONS.get(
                code & 0xFF, ("STORE_UNAVAILABLE", "the database of observations failed: " + str(cause))
            )
        cause = cause.__cause__
    return "STORE_UNAVAILABLE", "the database of observations failed"
