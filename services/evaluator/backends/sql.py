"""Observations and their aggregates in SQL through SQLAlchemy: SQLite in WAL mode, or PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    and_,
    case,
    event,
    func,
    or_,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from meshkit.errors import Unavailable
from meshkit.sqlite import unlock_when_cancelled, write_ahead
from services.evaluator.aggregate import Aggregate
from services.evaluator.backends import sql_segments, sql_version_1
from services.evaluator.backends.schema import SCHEMA
from services.evaluator.backends.sql_failures import unavailable
from services.evaluator.backends.sql_tables import (
    CONVERSATIONS,
    OBSERVATIONS,
    PEAKS,
    SCOPES,
)
from services.evaluator.domain import (
    CONVERSATION,
    MEASURED,
    NORMALIZED,
    Configuration,
    Measurement,
    Observation,
    Scope,
    ScopeSummary,
    StoredMeasurement,
    Window,
)
from services.evaluator.moments import Moments
from services.evaluator.reporting import Totals
from services.evaluator.windows import Bucket, begins_us, bucket, minute

_WRITES: Final = "ragmesh_writes"
_WRITERS: Final = 0x7261676D657368  # "ragmesh": a key that other users of the database will not choose
_CHUNK: Final = 10_000  # keys per SELECT … IN, below every database's limit of parameters
_CONNECT_S: Final = 5.0
_STATEMENT_S: Final = 60.0

_Item = tuple[Observation, Measurement]


class _Peak(NamedTuple):
    tenant: str
    query_id: str
    collection: str
    generator: str
    metric: str


class _Kind(IntEnum):
    RUN = 0
    CONFIGURATION = 1


class _ScopeKey(NamedTuple):
    tenant: str
    kind: int
    key: str


class _ConversationKey(NamedTuple):
    tenant: str
    run_id: str
    conversation_id: str


def _now_us() -> int:
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a batch of new observations moves."""

    peaks: Mapping[_Peak, float]
    conversations: Mapping[_ConversationKey, _Item]
    scopes: Mapping[_ScopeKey, Mapping[Bucket, Sequence[int]]]
    """Places in the batch, by scope and bucket."""


class SqlObservationStore:
    """An :class:`services.evaluator.ports.ObservationStore` in a SQL database.

    SQLite runs in WAL mode with ``synchronous=FULL``: a commit that returned has reached the disk. Ids are
    made idempotent by a unique key, so several evaluators may share one database; their transactions come one
    after the other, in PostgreSQL by an advisory lock.

    Args:
        url: database with an async driver, such as ``sqlite+aiosqlite:///FILE``.
        lock_timeout_s: how long a locked SQLite database is waited for. Seconds, [0, 60].
        clock: what time it is. Microseconds since 1970.
        remeasure: reads and measures a payload, for databases of version 1; None refuses those.
    """

    def __init__(
        self,
        url: URL,
        *,
        lock_timeout_s: float = 5.0,
        clock: Callable[[], int] = _now_us,
        remeasure: Callable[[bytes], tuple[Observation, Measurement]] | None = None,
    ) -> None:
        self._remeasure = remeasure
        self._url = url
        self._lock_timeout_s = lock_timeout_s
        self._clock = clock
        self._insert = postgresql.insert if url.get_backend_name() == "postgresql" else sqlite.insert
        self._reader: AsyncEngine | None = None
        self._writer: AsyncEngine | None = None
        self._segments = sql_segments.Reader()
        self._tidied_minute = 0
        self._tidied: set[int] = set()

    async def open(self) -> None:
        """See the port."""
        is_sqlite = self._url.get_backend_name() == "sqlite"
        arguments: dict[str, Any] = {"timeout": self._lock_timeout_s}
        if not is_sqlite:
            arguments = {"timeout": _CONNECT_S, "command_timeout": _STATEMENT_S}
        if is_sqlite and self._url.database and not self._url.database.startswith("file:"):
            path = Path(self._url.database)
            try:
                await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
            except OSError as error:
                raise Unavailable(
                    "STORE_UNAVAILABLE", f"cannot make the folder {path.parent}: {error.strerror}"
                ) from error
        # A server that was started again is noticed before a connection of before is used.
        engine = create_async_engine(self._url, pool_pre_ping=not is_sqlite, connect_args=arguments)
        if is_sqlite:
            event.listen(engine.sync_engine, "connect", _prepare_sqlite)
            event.listen(engine.sync_engine, "begin", _begin_sqlite)
            unlock_when_cancelled(engine)
            self._reader = engine
        else:
            event.listen(engine.sync_engine, "begin", _begin_postgresql)
            # What one report reads belongs together; in SQLite a transaction is so by itself.
            self._reader = engine.execution_options(isolation_level="REPEATABLE READ")
        self._writer = engine.execution_options(**{_WRITES: True})
        try:
            with unavailable():
                async with self._writer.begin() as connection:
                    await connection.run_sync(SCHEMA.upgrade)
                    has_version_1 = await connection.run_sync(sql_version_1.is_there)
                if has_version_1:
                    await self._measure_again(self._reader, self._writer)
        except Unavailable:
            await self.close()
            raise

    async def _measure_again(self, reader: AsyncEngine, writer: AsyncEngine) -> None:
        """Stores what a database of version 1 held; begun again where it was stopped, as ids count once."""
        if self._remeasure is None:
            raise Unavailable("STORE_UNAVAILABLE", "the database of observations is of version 1")
        async for page in sql_version_1.payloads(reader):
            await self.append(await asyncio.to_thread(list, map(self._remeasure, page)))
        async with writer.begin() as connection:
            await connection.run_sync(sql_version_1.drop)

    async def close(self) -> None:
        """See the port."""
        if self._reader is not None:
            await self._reader.dispose()

    async def append(self, batch: Sequence[_Item]) -> Sequence[bool]:
        """See the port."""
        now_us = self._clock()
        first: dict[tuple[str, str], _Item] = {}
        for item in batch:
            first.setdefault((item[0].tenant, item[0].id), item)
        tidied: set[int] = set()
        with unavailable():
            async with self._open_writer().begin() as connection:
                new = await self._insert_observations(connection, list(first.values()), now_us)
                items = [item for key, item in first.items() if key in new]
                if items:
                    plan = await asyncio.to_thread(_plan, items, now_us)
                    tidied = await self._aggregate(connection, items, plan, now_us)
        self._tidied |= tidied
        stored = []
        for observation, _ in batch:
            key = (observation.tenant, observation.id)
            stored.append(key in new)
            new.discard(key)
        return stored

    async def totals(self, tenant: str, scope: Scope, window: Window) -> Totals | None:
        """See the port."""
        now_us = self._clock()
        tenant, kind, key = _scope_key(tenant, scope)
        with unavailable():
            async with self._open_reader().connect() as connection:
                found = and_(SCOPES.c.tenant == tenant, SCOPES.c.kind == kind, SCOPES.c.key == key)
                scope_id = await connection.scalar(select(SCOPES.c.id).where(found))
                if scope_id is None:
                    return None
                whole = await self._segments.read(connection, scope_id, window, now_us)
                of_scope = (
                    and_(CONVERSATIONS.c.tenant == tenant, CONVERSATIONS.c.run_id == key)
                    if kind == _Kind.RUN
                    else CONVERSATIONS.c.configuration_id == scope_id
                )
                begins = begins_us(window, now_us)
                if begins is not None:
                    of_scope = and_(of_scope, CONVERSATIONS.c.observed_at_us >= begins)
                return Totals(
                    whole,
                    await _peaks(connection, whole.utilities.keys),
                    await _conversations(connection, of_scope),
                )

    async def runs(self, tenant: str, *, before: int | None, limit: int) -> Sequence[ScopeSummary]:
        """See the port."""
        return await self._scopes(tenant, _Kind.RUN, before, limit)

    async def configurations(self, tenant: str, *, before: int | None, limit: int) -> Sequence[ScopeSummary]:
        """See the port."""
        return await self._scopes(tenant, _Kind.CONFIGURATION, before, limit)

    async def measurements(
        self, tenant: str, run_id: str, *, after: int, limit: int
    ) -> Sequence[StoredMeasurement]:
        """See the port."""
        columns = OBSERVATIONS.c
        names = (*MEASURED, *CONVERSATION)
        same_query = and_(
            PEAKS.c.tenant == columns.tenant,
            PEAKS.c.query_id == columns.query_id,
            PEAKS.c.collection == columns.collection,
            PEAKS.c.generator == columns.generator,
            PEAKS.c.metric == columns.metric,
        )
        query = (
            select(
                columns.sequence,
                columns.id,
                columns.query_id,
                columns.collection,
                columns.retriever,
                columns.reranker,
                columns.generator,
                columns.alpha,
                columns.observed_at_us,
                PEAKS.c.utility,
                *(columns[name] for name in names),
            )
            .select_from(OBSERVATIONS.outerjoin(PEAKS, same_query))
            .where(columns.tenant == tenant, columns.run_id == run_id, columns.sequence > after)
            .order_by(columns.sequence)
            .limit(limit)
        )
        with unavailable():
            async with self._open_reader().connect() as connection:
                rows = (await connection.execute(query)).all()
        page = []
        for row in rows:
            sequence, id_, query_id, *configuration, observed_at_us, peak = row[:10]
            quantities = {name: v for name, v in zip(names, row[10:], strict=True) if v is not None}
            if peak and "expected_utility" in quantities:
                quantities[NORMALIZED] = quantities["expected_utility"] / peak
            page.append(
                StoredMeasurement(
                    sequence, id_, query_id, Configuration(*configuration), observed_at_us, quantities
                )
            )
        return page

    async def _scopes(
        self, tenant: str, kind: _Kind, before: int | None, limit: int
    ) -> Sequence[ScopeSummary]:
        mine = and_(SCOPES.c.tenant == tenant, SCOPES.c.kind == kind)
        query = select(SCOPES).where(mine).order_by(SCOPES.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(SCOPES.c.id < before)
        with unavailable():
            async with self._open_reader().connect() as connection:
                return [
                    ScopeSummary(
                        row.id,
                        row.key if kind is _Kind.RUN else Configuration(*json.loads(row.key)),
                        row.num_observations,
                        row.started_at_us,
                        row.updated_at_us,
                    )
                    for row in await connection.execute(query)
                ]

    async def _insert_observations(
        self, connection: AsyncConnection, batch: Sequence[_Item], now_us: int
    ) -> set[tuple[str, str]]:
        """Inserts what is not there yet and returns tenants and ids of it; the database decides between
        evaluators too."""
        empty = dict.fromkeys(CONVERSATION)
        rows = [
            {
                "tenant": observation.tenant,
                "id": observation.id,
                "run_id": observation.run_id,
                "query_id": observation.query_id,
                "observed_at_us": observation.observed_at_us,
                "stored_at_us": now_us,
                "collection": observation.configuration.collection,
                "retriever": observation.configuration.retriever,
                "reranker": observation.configuration.reranker,
                "generator": observation.configuration.generator,
                "alpha": observation.configuration.alpha,
                "metric": observation.labels.metric.value,
                "num_rankings": measurement.num_rankings,
                "num_unanswered": measurement.num_unanswered,
                **empty,
                **measurement.quantities,
                "payload": observation.payload,
            }
            for observation, measurement in batch
        ]
        statement = self._insert(OBSERVATIONS).on_conflict_do_nothing(index_elements=["tenant", "id"])
        columns = OBSERVATIONS.c
        found = await connection.execute(statement.returning(columns.tenant, columns.id), rows)
        return {(tenant, id_) for tenant, id_ in found}

    async def _aggregate(
        self, connection: AsyncConnection, items: Sequence[_Item], plan: _Plan, now_us: int
    ) -> set[int]:
        """Moves the aggregates, and returns the ids of the scopes whose segments are tidy for this minute."""
        peak_ids = await self._raise_peaks(connection, plan.peaks)
        written = await self._touch_scopes(connection, items, plan.scopes)
        if plan.conversations:
            configurations = {key: id_ for key, (id_, _) in written.items()}
            await self._replace_conversations(connection, plan.conversations, configurations)
        rows = await asyncio.to_thread(_segments, items, plan.scopes, peak_ids, written)
        await sql_segments.add(connection, rows)

        now_minute = minute(now_us)
        if now_minute != self._tidied_minute:
            self._tidied_minute = now_minute
            self._tidied.clear()
        piled = {
            id_
            for key, (id_, last) in written.items()
            if last // sql_segments.FAN > (last - len(plan.scopes[key])) // sql_segments.FAN
        }
        due = piled | {id_ for id_, _ in written.values() if id_ not in self._tidied}
        if due:
            await sql_segments.tidy(connection, due, now_us)
        return due

    async def _raise_peaks(
        self, connection: AsyncConnection, peaks: Mapping[_Peak, float]
    ) -> dict[_Peak, str]:
        if not peaks:
            return {}
        statement = self._insert(PEAKS)
        new, old = statement.excluded, PEAKS.c
        rows = await connection.execute(
            statement.on_conflict_do_update(
                index_elements=list(_Peak._fields),
                set_={"utility": case((new.utility > old.utility, new.utility), else_=old.utility)},
            ).returning(PEAKS.c.id, *(PEAKS.c[name] for name in _Peak._fields)),
            [{**peak._asdict(), "utility": peaks[peak]} for peak in peaks],
        )
        return {_Peak(*peak): str(id_) for id_, *peak in rows}

    async def _touch_scopes(
        self,
        connection: AsyncConnection,
        items: Sequence[_Item],
        scopes: Mapping[_ScopeKey, Mapping[Bucket, Sequence[int]]],
    ) -> dict[_ScopeKey, tuple[int, int]]:
        """Counts observations and segments to come; returns each scope's id and last segment number."""
        rows = []
        for scope, buckets in scopes.items():
            times = [items[place][0].observed_at_us for places in buckets.values() for place in places]
            rows.append(
                {
                    **scope._asdict(),
                    "num_observations": len(times),
                    "started_at_us": min(times),
                    "updated_at_us": max(times),
                    "num_segments": len(buckets),
                }
            )
        statement = self._insert(SCOPES)
        new, old = statement.excluded, SCOPES.c
        found = await connection.execute(
            statement.on_conflict_do_update(
                index_elements=list(_ScopeKey._fields),
                set_={
                    "num_observations": old.num_observations + new.num_observations,
                    "started_at_us": case(
                        (new.started_at_us < old.started_at_us, new.started_at_us), else_=old.started_at_us
                    ),
                    "updated_at_us": case(
                        (new.updated_at_us > old.updated_at_us, new.updated_at_us), else_=old.updated_at_us
                    ),
                    "num_segments": old.num_segments + new.num_segments,
                },
            ).returning(*(SCOPES.c[name] for name in (*_ScopeKey._fields, "id", "num_segments"))),
            rows,
        )
        return {_ScopeKey(*scope): (id_, segments) for *scope, id_, segments in found}

    async def _replace_conversations(
        self,
        connection: AsyncConnection,
        conversations: Mapping[_ConversationKey, _Item],
        scope_ids: Mapping[_ScopeKey, int],
    ) -> None:
        statement = self._insert(CONVERSATIONS)
        new, old = statement.excluded, CONVERSATIONS.c
        replaced = ["configuration_id", "observed_at_us", "observation_id", *CONVERSATION]
        await connection.execute(
            statement.on_conflict_do_update(
                index_elements=list(_ConversationKey._fields),
                set_={name: new[name] for name in replaced},
                where=or_(
                    new.observed_at_us > old.observed_at_us,
                    and_(new.observed_at_us == old.observed_at_us, new.observation_id > old.observation_id),
                ),
            ),
            [
                {
                    **key._asdict(),
                    "configuration_id": scope_ids[_scope_key(key.tenant, observation.configuration)],
                    "observed_at_us": observation.observed_at_us,
                    "observation_id": observation.id,
                    **{name: measurement.quantities[name] for name in CONVERSATION},
                }
                for key, (observation, measurement) in conversations.items()
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


def _plan(items: Sequence[_Item], now_us: int) -> _Plan:
    peaks: dict[_Peak, float] = {}
    conversations: dict[_ConversationKey, _Item] = {}
    scopes: dict[_ScopeKey, dict[Bucket, list[int]]] = defaultdict(lambda: defaultdict(list))
    for place, item in enumerate(items):
        observation, measurement = item
        at = bucket(observation.observed_at_us, now_us)
        scopes[_scope_key(observation.tenant, observation.run_id)][at].append(place)
        scopes[_scope_key(observation.tenant, observation.configuration)][at].append(place)
        if measurement.largest_utility is not None:
            peak = _peak(observation)
            peaks[peak] = max(peaks.get(peak, 0.0), measurement.largest_utility)
        if observation.conversation is not None:
            key = _ConversationKey(observation.tenant, observation.run_id, observation.conversation.id)
            if key not in conversations or _order(conversations[key][0]) < _order(observation):
                conversations[key] = item
    return _Plan(peaks, conversations, scopes)


def _segments(
    items: Sequence[_Item],
    scopes: Mapping[_ScopeKey, Mapping[Bucket, Sequence[int]]],
    peak_ids: Mapping[_Peak, str],
    written: Mapping[_ScopeKey, tuple[int, int]],
) -> list[dict[str, Any]]:
    packed: dict[tuple[int, ...], bytes] = {}  # a run often is its configuration
    rows = []
    for key, buckets in scopes.items():
        scope_id, last = written[key]
        for number, (at, places) in enumerate(buckets.items()):
            which = tuple(places)
            if which not in packed:
                part = [(*items[place], peak_ids.get(_peak(items[place][0]))) for place in places]
                packed[which] = Aggregate.of(part).pack()
            rows.append(
                {
                    "scope_id": scope_id,
                    "sequence": last - number,
                    "span": at.span,
                    "start": at.start,
                    "state": packed[which],
                }
            )
    return rows


def _order(observation: Observation) -> tuple[int, str]:
    return observation.observed_at_us, observation.id


def _peak(observation: Observation) -> _Peak:
    configuration = observation.configuration
    return _Peak(
        observation.tenant,
        observation.query_id,
        configuration.collection,
        configuration.generator,
        observation.labels.metric.value,
    )


def _scope_key(tenant: str, scope: Scope) -> _ScopeKey:
    if isinstance(scope, str):
        return _ScopeKey(tenant, _Kind.RUN, scope)
    alpha = None if scope.alpha is None else float(scope.alpha) + 0.0  # -0.0 is 0.0
    fields = [scope.collection, scope.retriever, scope.reranker, scope.generator, alpha]
    key = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    return _ScopeKey(tenant, _Kind.CONFIGURATION, key)


async def _peaks(connection: AsyncConnection, keys: Sequence[str]) -> dict[str, float]:
    peaks: dict[str, float] = {}
    for start in range(0, len(keys), _CHUNK):
        ids = [int(key) for key in keys[start : start + _CHUNK]]
        for id_, utility in await connection.execute(
            select(PEAKS.c.id, PEAKS.c.utility).where(PEAKS.c.id.in_(ids))
        ):
            peaks[str(id_)] = utility
    return peaks


async def _conversations(connection: AsyncConnection, of_scope: ColumnElement[bool]) -> dict[str, Moments]:
    """Moments over conversations: two passes, as a sum of squares would lose digits."""
    columns = [CONVERSATIONS.c[name] for name in CONVERSATION]
    counted = [f(column) for column in columns for f in (func.count, func.avg)]
    first = (await connection.execute(select(*counted, func.count()).where(of_scope))).one()
    total = first[-1]
    means = {name: first[2 * i + 1] or 0.0 for i, name in enumerate(CONVERSATION)}
    second = (
        await connection.execute(
            select(*(func.sum((c - means[c.name]) * (c - means[c.name])) for c in columns)).where(of_scope)
        )
    ).one()
    return {
        name: Moments(first[2 * i], total - first[2 * i], float(means[name]), float(second[i] or 0.0))
        for i, name in enumerate(CONVERSATION)
    }


def _prepare_sqlite(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    # The driver's own idea of transactions begins them late and never for SELECT; _begin_sqlite does it
    # instead.
    connection.isolation_level = None
    cursor = connection.cursor()
    write_ahead(cursor)
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA cache_size=-65536")  # KiB: the index of ids stays in memory as it grows
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A writer takes the lock at once: one that reads first and writes later may find that it cannot.
    connection.exec_driver_sql(
        "BEGIN IMMEDIATE" if connection.get_execution_options().get(_WRITES) else "BEGIN"
    )


def _begin_postgresql(connection: Connection) -> None:
    # One writer at a time, as in SQLite: no two of them wait for each other's rows, and observations become
    # visible in the order of their sequence numbers.
    if connection.get_execution_options().get(_WRITES):
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS})")
