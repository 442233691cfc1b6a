"""The observation store in SQL: observations and their aggregates."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from sqlalchemy import (
    URL,
    ColumnElement,
    and_,
    func,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from evenmesh.wire.errors import Unavailable
from evenmesh_evaluator.backends import sql_deletion, sql_providers, sql_segments, sql_usage, sql_version_1
from evenmesh_evaluator.backends.schema import SCHEMA
from evenmesh_evaluator.backends.sql_deletion import RunStep
from evenmesh_evaluator.backends.sql_tables import CONVERSATIONS, OBSERVATIONS, PEAKS, SCOPES
from evenmesh_evaluator.backends.sql_upserts import Upserts
from evenmesh_evaluator.domain import (
    CONVERSATION,
    MEASURED,
    NORMALIZED,
    Configuration,
    Measurement,
    Observation,
    ProviderBalance,
    ProviderDay,
    Quotas,
    Scope,
    ScopeSummary,
    StoredMeasurement,
    Window,
)
from evenmesh_evaluator.reports.aggregate import Aggregate
from evenmesh_evaluator.reports.moments import Moments
from evenmesh_evaluator.reports.summary import Totals
from evenmesh_evaluator.reports.windows import Bucket, begins_us, bucket, minute
from evenmesh_kit.storage.sql import SqlDatabase, chunks, now_us

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


@dataclass(frozen=True, slots=True)
class _Changes:
    """The rows that a batch of new observations changes."""

    peaks: Mapping[_Peak, float]
    conversations: Mapping[_ConversationKey, _Item]
    scopes: Mapping[_ScopeKey, Mapping[Bucket, Sequence[int]]]
    """Places in the batch, by scope and bucket."""


class SqlObservationStore:
    """Stores observations, and the running aggregates of every run and configuration of a tenant.

    Tenants are isolated: no observation of one changes or reveals anything to another.

    Every method raises ``evenmesh.wire.errors.Unavailable`` when the store cannot work now, with a reason:
    ``STORE_FULL``, ``STORE_READ_ONLY``, ``STORE_LOCKED``, ``STORE_VERSION`` or ``STORE_UNAVAILABLE``.

    Several evaluators may share one database. Ids are made idempotent by a unique key. Writing transactions
    run one after the other, see :class:`evenmesh_kit.storage.sql.SqlDatabase`: so what one reads and then
    writes (numbers of segments, merged segments, quotas) is what is there, and reports are the same from
    each. What this object remembers only spares work: which tenants were full, which scopes were compacted
    in this minute, which days were dropped, and sums of segments, which never change under their names. The
    clocks of the evaluators may differ by minutes, see :mod:`evenmesh_evaluator.reports.windows`.

    Args:
        url: database with an async driver, such as ``sqlite+aiosqlite:///FILE``.
        lock_timeout_s: how long to wait for a locked SQLite database. Seconds, [0, 60].
        clock: the time. Microseconds since 1970.
        quotas: what a tenant may keep.
        provider_days: how long days of providers are kept; 0 keeps none. Days.
        remeasure: parses and measures a payload, for databases of version 1; None refuses those.
    """

    def __init__(
        self,
        url: URL,
        *,
        lock_timeout_s: float = 5.0,
        clock: Callable[[], int] = now_us,
        quotas: Quotas | None = None,
        provider_days: int = 400,
        remeasure: Callable[[bytes], tuple[Observation, Measurement]] | None = None,
    ) -> None:
        self._remeasure = remeasure
        self._database = SqlDatabase(url, SCHEMA, lock_timeout_s=lock_timeout_s, cache_kib=65_536)
        self._clock = clock
        self._upserts = Upserts(self._database)
        self._quotas = quotas or Quotas()
        self._full: set[str] = set()
        self._provider_days = provider_days
        self._first_day = 0
        self._segments = sql_segments.Reader()
        self._compacted_minute = 0
        self._compacted: set[int] = set()

    async def open(self) -> None:
        """Make the store ready, creating it where it does not exist."""
        await self._database.open()
        try:
            async with self._database.read() as connection:
                has_version_1 = await connection.run_sync(sql_version_1.is_there)
            if has_version_1:
                await self._measure_again()
        except Unavailable:
            await self.close()
            raise

    async def _measure_again(self) -> None:
        """Store what a database of version 1 held. An interrupted run starts over, as ids count once."""
        if self._remeasure is None:
            raise Unavailable("STORE_UNAVAILABLE", "the database of observations is of version 1")
        async for page in sql_version_1.payloads(self._database):
            await self._append(await asyncio.to_thread(list, map(self._remeasure, page)), bounded=False)
        async with self._database.write() as connection:
            await connection.run_sync(sql_version_1.drop)

    async def close(self) -> None:
        """Close the store; call nothing else afterwards."""
        await self._database.close()

    async def append(self, batch: Sequence[_Item]) -> Sequence[bool | None]:
        """Store a batch in one transaction, all of it or nothing; it is durable when this returns.

        Returns for each observation whether it is new; None for one that is more than its tenant may keep,
        which is not stored. One whose id was stored before, or comes earlier in the batch, changes nothing
        and is not new. The same transaction updates the aggregates, at a cost that does not depend on the
        number of earlier observations.

        What a tenant keeps is known when the batch has been counted. A batch that is more than a tenant may
        keep is undone, and stored again in part. From then on the tenant's usage is read first.
        """
        while True:
            try:
                return await self._append(batch, bounded=True)
            except sql_usage.OverQuota as error:
                self._full |= error.tenants

    async def _append(self, batch: Sequence[_Item], *, bounded: bool) -> Sequence[bool | None]:
        now_us = self._clock()
        first: dict[tuple[str, str], _Item] = {}
        for item in batch:
            first.setdefault((item[0].tenant, item[0].id), item)
        quotas = self._quotas if bounded else None
        compacted: set[int] = set()
        items: list[_Item] = []
        over: set[tuple[str, str]] = set()
        async with self._database.write() as connection:
            full = [_entry(one) for one, _ in first.values() if one.tenant in self._full]
            if full and quotas is not None:
                kinds = (_Kind.RUN, _Kind.CONFIGURATION)
                over = await sql_usage.over(connection, full, quotas, kinds)
            fitting = [item for key, item in first.items() if key not in over]
            new = await self._insert_observations(connection, fitting, now_us) if fitting else set()
            items = [item for key, item in first.items() if key in new]
            if items:
                changes = await asyncio.to_thread(_changes, items, now_us)
                compacted = await self._aggregate(connection, items, changes, now_us, quotas)
        # Not before it is durable: what was undone is to be done again.
        self._compacted |= compacted
        if items:
            self._first_day = self._first_kept(now_us)
        stored: list[bool | None] = []
        for observation, _ in batch:
            key = (observation.tenant, observation.id)
            stored.append(None if key in over else key in new)
            new.discard(key)
        return stored

    async def delete_before(self, stored_us: int) -> int:
        """Delete the oldest observations that were stored before a time; return how many, 0 if none is left.

        What was summed of them stays, and so do the runs: reports do not change. Their ids are forgotten.

        Args:
            stored_us: microseconds since 1970.
        """
        async with self._database.write() as connection:
            deleted = await sql_deletion.stored_before(connection, stored_us)
            if deleted:
                freed = {tenant: {"num_bytes": -of["num_bytes"]} for tenant, of in deleted.items()}
                await sql_usage.add(connection, self._upserts.usage, freed, None)
        return sum(of["number"] for of in deleted.values())

    async def delete_run_step(self, tenant: str, run_id: str) -> RunStep:
        """Delete a part of a run, and its report in the end; call it until it has ended.

        Its observations, whose ids are forgotten, and its conversations go first. What was summed of them in
        configurations and days of providers stays. What is observed of the run meanwhile is deleted, too.
        """
        async with self._database.write() as connection:
            step = await sql_deletion.run_step(connection, tenant, run_id, _Kind.RUN)
            freed = {"num_bytes": -step.num_bytes, "num_runs": -int(step.found)}
            if any(freed.values()):
                await sql_usage.add(connection, self._upserts.usage, {tenant: freed}, None)
        return step

    async def totals(self, tenant: str, scope: Scope, window: Window) -> Totals | None:
        """Return the totals of a tenant's run or configuration in a window; None if nothing was ever stored.

        Of a conversation only the latest observation counts, in whichever batch it came.
        """
        now_us = self._clock()
        tenant, kind, key = _scope_key(tenant, scope)
        async with self._database.read() as connection:
            found = and_(SCOPES.c.tenant == tenant, SCOPES.c.kind == kind, SCOPES.c.key == key)
            scope_id = await connection.scalar(select(SCOPES.c.id).where(found))
            if scope_id is None:
                return None
            parts = await self._segments.read(connection, scope_id, window, now_us)
            of_scope = (
                and_(CONVERSATIONS.c.tenant == tenant, CONVERSATIONS.c.run_id == key)
                if kind == _Kind.RUN
                else CONVERSATIONS.c.configuration_id == scope_id
            )
            begins = begins_us(window, now_us)
            if begins is not None:
                of_scope = and_(of_scope, CONVERSATIONS.c.observed_at_us >= begins)
            conversations = await _conversations(connection, of_scope)
        whole = await self._segments.sum(parts)
        peaks: dict[str, float] = {}
        if whole.utilities.keys:
            async with self._database.read() as connection:
                peaks = await _peaks(connection, whole.utilities.keys)
        return Totals(whole, peaks, conversations)

    async def runs(self, tenant: str, *, before: int | None, limit: int) -> Sequence[ScopeSummary]:
        """Return up to ``limit`` runs of a tenant, newest first, with a sequence below ``before``."""
        return await self._scopes(tenant, _Kind.RUN, before, limit)

    async def configurations(self, tenant: str, *, before: int | None, limit: int) -> Sequence[ScopeSummary]:
        """Return up to ``limit`` configurations of a tenant, as :meth:`runs` does."""
        return await self._scopes(tenant, _Kind.CONFIGURATION, before, limit)

    async def provider_days(
        self, tenant: str, provider: str, *, first_day: int, last_day: int
    ) -> Sequence[ProviderDay]:
        """Return what each configuration of a tenant showed of a provider on each day of a window.

        Days are UTC, counted from 1970-01-01. They come by configuration, the oldest first, then by day.
        """
        async with self._database.read() as connection:
            return await sql_providers.days(connection, tenant, provider, first_day, last_day)

    async def balance(
        self, tenant: str, collection: str, *, half_life_days: float, limit: int
    ) -> Sequence[ProviderBalance]:
        """Return what the providers of a collection are owed, those furthest from their target first.

        Every configuration counts; a day's asks count half after ``half_life_days``.
        """
        today = self._clock() / sql_providers.DAY_US
        async with self._database.read() as connection:
            return await sql_providers.balance(
                connection, tenant, collection, today=today, half_life=half_life_days, limit=limit
            )

    async def reset_balance(self, tenant: str, collection: str) -> int:
        """Forget what the providers of a collection are owed, and return how many they were."""
        async with self._database.write() as connection:
            return await sql_providers.reset(connection, tenant, collection)

    async def observation(self, tenant: str, observation_id: str) -> bytes | None:
        """Return the payload of a tenant's observation; None if there is none."""
        columns = OBSERVATIONS.c
        query = select(columns.payload).where(columns.tenant == tenant, columns.id == observation_id)
        async with self._database.read() as connection:
            payload: bytes | None = await connection.scalar(query)
        return payload

    async def has_run(self, tenant: str, run_id: str) -> bool:
        """Return whether a tenant's run was ever observed, though its observations may be deleted."""
        columns = SCOPES.c
        mine = and_(columns.tenant == tenant, columns.kind == _Kind.RUN, columns.key == run_id)
        async with self._database.read() as connection:
            return await connection.scalar(select(columns.id).where(mine)) is not None

    async def measurements(
        self, tenant: str, run_id: str, *, after: int, limit: int
    ) -> Sequence[StoredMeasurement]:
        """Return up to ``limit`` measurements of a run, in the order of storing, with a sequence > ``after``.

        Normalised expected utility is relative to the current u_max.
        """
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
                columns.target,
                columns.observed_at_us,
                PEAKS.c.utility,
                *(columns[name] for name in names),
            )
            .select_from(OBSERVATIONS.outerjoin(PEAKS, same_query))
            .where(columns.tenant == tenant, columns.run_id == run_id, columns.sequence > after)
            .order_by(columns.sequence)
            .limit(limit)
        )
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).all()
        page = []
        for row in rows:
            sequence, id_, query_id, *configuration, observed_at_us, peak = row[:11]
            quantities = {name: v for name, v in zip(names, row[11:], strict=True) if v is not None}
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
        async with self._database.read() as connection:
            # Ids count over all tenants, so a scope's number is its place among those of its tenant.
            end = await connection.scalar(select(func.count()).select_from(SCOPES).where(mine)) or 0
            if before is not None:
                end = min(end, max(0, before - 1))
            begin = max(0, end - limit)
            query = select(SCOPES).where(mine).order_by(SCOPES.c.id).offset(begin).limit(end - begin)
            rows = (await connection.execute(query)).all()
            return [
                ScopeSummary(
                    begin + place + 1,
                    row.key if kind is _Kind.RUN else Configuration(*json.loads(row.key)),
                    row.num_observations,
                    row.started_at_us,
                    row.updated_at_us,
                )
                for place, row in reversed(list(enumerate(rows)))
            ]

    async def _insert_observations(
        self, connection: AsyncConnection, batch: Sequence[_Item], now_us: int
    ) -> set[tuple[str, str]]:
        """Insert new observations and return their tenants and ids; the database decides between writers."""
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
                "target": observation.configuration.target,
                "metric": observation.labels.metric.value,
                "num_rankings": measurement.num_rankings,
                "num_unanswered": measurement.num_unanswered,
                **empty,
                **measurement.quantities,
                "payload": observation.payload,
            }
            for observation, measurement in batch
        ]
        found = await connection.execute(self._upserts.observations, rows)
        return {(tenant, id_) for tenant, id_ in found}

    async def _aggregate(
        self,
        connection: AsyncConnection,
        items: Sequence[_Item],
        changes: _Changes,
        now_us: int,
        quotas: Quotas | None,
    ) -> set[int]:
        """Update the aggregates, and return the ids of scopes with segments compacted for this minute.

        Raises:
            sql_usage.OverQuota: a tenant would keep more than ``quotas``; None for no quotas.
        """
        peak_ids, kept = await self._raise_peaks(connection, changes.peaks)
        written = await self._touch_scopes(connection, items, changes.scopes)
        if changes.conversations:
            configurations = {key: id_ for key, (id_, _) in written.items()}
            kept.update(await self._new_conversations(connection, changes.conversations))
            await self._replace_conversations(connection, changes.conversations, configurations)
        added = _added(items, changes.scopes, written)
        for tenant, number in kept.items():
            added[tenant]["num_bytes"] += number * sql_usage.KEPT_BYTES
        for tenant, days in (await self._add_providers(connection, items, written, now_us)).items():
            added[tenant]["num_bytes"] += days * sql_usage.PROVIDER_BYTES
        await sql_usage.add(connection, self._upserts.usage, added, quotas)
        rows = await asyncio.to_thread(_segments, items, changes.scopes, peak_ids, written)
        await sql_segments.add(connection, rows)

        now_minute = minute(now_us)
        if now_minute != self._compacted_minute:
            self._compacted_minute = now_minute
            self._compacted.clear()
        piled = {
            id_
            for key, (id_, last) in written.items()
            if last // sql_segments.FAN > (last - len(changes.scopes[key])) // sql_segments.FAN
        }
        due = piled | {id_ for id_, _ in written.values() if id_ not in self._compacted}
        if due:
            await sql_segments.compact(connection, due, now_us)
        return due

    async def _add_providers(
        self,
        connection: AsyncConnection,
        items: Sequence[_Item],
        written: Mapping[_ScopeKey, tuple[int, int]],
        now_us: int,
    ) -> Counter[str]:
        """Add to the days of providers, and return by tenant how many more there are."""
        if not self._provider_days:
            return Counter()
        first_day = self._first_kept(now_us)
        more: Counter[str] = Counter()
        if first_day != self._first_day:
            more.subtract(await sql_providers.drop_before(connection, first_day))
        placed = [
            (one, measured, written[_scope_key(one.tenant, one.configuration)][0]) for one, measured in items
        ]
        rows = await asyncio.to_thread(sql_providers.rows, placed, now_us, first_day=first_day)
        if rows:
            more.update(await sql_providers.add(connection, self._upserts.providers, rows))
        return more

    def _first_kept(self, now_us: int) -> int:
        return now_us // sql_providers.DAY_US - self._provider_days + 1

    async def _raise_peaks(
        self, connection: AsyncConnection, peaks: Mapping[_Peak, float]
    ) -> tuple[dict[_Peak, str], Counter[str]]:
        """Return the ids of peaks, and by tenant how many are new."""
        if not peaks:
            return {}, Counter()
        # Nobody else writes meanwhile, so the new ones have higher ids than all before.
        last = await connection.scalar(select(func.max(PEAKS.c.id))) or 0
        raised = [{**peak._asdict(), "utility": peaks[peak]} for peak in peaks]
        rows = (await connection.execute(self._upserts.peaks, raised)).all()
        new = Counter(_Peak(*peak).tenant for id_, *peak in rows if id_ > last)
        return {_Peak(*peak): str(id_) for id_, *peak in rows}, new

    async def _touch_scopes(
        self,
        connection: AsyncConnection,
        items: Sequence[_Item],
        scopes: Mapping[_ScopeKey, Mapping[Bucket, Sequence[int]]],
    ) -> dict[_ScopeKey, tuple[int, int]]:
        """Count new observations and segments; return each scope's id and last segment number."""
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
        found = await connection.execute(self._upserts.scopes, rows)
        return {_ScopeKey(*scope): (id_, segments) for *scope, id_, segments in found}

    async def _new_conversations(
        self, connection: AsyncConnection, keys: Iterable[_ConversationKey]
    ) -> Counter[str]:
        """Return by tenant how many conversations are not there yet."""
        runs: dict[tuple[str, str], list[str]] = defaultdict(list)
        for key in keys:
            runs[key.tenant, key.run_id].append(key.conversation_id)
        columns, new = CONVERSATIONS.c, Counter[str]()
        for (tenant, run_id), ids in runs.items():
            new[tenant] += len(ids)
            for part in chunks(ids):
                there = and_(
                    columns.tenant == tenant, columns.run_id == run_id, columns.conversation_id.in_(part)
                )
                query = select(func.count()).select_from(CONVERSATIONS).where(there)
                new[tenant] -= await connection.scalar(query) or 0
        return new

    async def _replace_conversations(
        self,
        connection: AsyncConnection,
        conversations: Mapping[_ConversationKey, _Item],
        scope_ids: Mapping[_ScopeKey, int],
    ) -> None:
        await connection.execute(
            self._upserts.conversations,
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


def _entry(observation: Observation) -> sql_usage.Entry:
    configuration = _scope_key(observation.tenant, observation.configuration).key
    return sql_usage.Entry(observation, observation.run_id, configuration)


def _added(
    items: Sequence[_Item],
    scopes: Mapping[_ScopeKey, Mapping[Bucket, Sequence[int]]],
    written: Mapping[_ScopeKey, tuple[int, int]],
) -> dict[str, Counter[str]]:
    """Return what the tenants of new observations keep more, by column, without days of providers."""
    added: dict[str, Counter[str]] = defaultdict(Counter)
    for observation, _ in items:
        added[observation.tenant]["num_bytes"] += sql_usage.ROW_BYTES + len(observation.payload)
    for key, (_, segments) in written.items():
        if segments == len(scopes[key]):  # all of its segments are of this batch: it is new
            added[key.tenant]["num_runs" if key.kind == _Kind.RUN else "num_configurations"] += 1
    return added


def _changes(items: Sequence[_Item], now_us: int) -> _Changes:
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
    return _Changes(peaks, conversations, scopes)


def _segments(
    items: Sequence[_Item],
    scopes: Mapping[_ScopeKey, Mapping[Bucket, Sequence[int]]],
    peak_ids: Mapping[_Peak, str],
    written: Mapping[_ScopeKey, tuple[int, int]],
) -> list[dict[str, Any]]:
    packed: dict[tuple[int, ...], bytes] = {}  # a run and its configuration often have the same observations
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
    if scope.target:  # keys without one are those of earlier versions
        fields.append(scope.target)
    key = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    return _ScopeKey(tenant, _Kind.CONFIGURATION, key)


async def _peaks(connection: AsyncConnection, keys: Sequence[str]) -> dict[str, float]:
    peaks: dict[str, float] = {}
    for part in chunks(keys):
        ids = [int(key) for key in part]
        for id_, utility in await connection.execute(
            select(PEAKS.c.id, PEAKS.c.utility).where(PEAKS.c.id.in_(ids))
        ):
            peaks[str(id_)] = utility
    return peaks


async def _conversations(connection: AsyncConnection, of_scope: ColumnElement[bool]) -> dict[str, Moments]:
    """Return moments over conversations, in two passes, as a sum of squares would lose digits."""
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
