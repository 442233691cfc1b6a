"""The feedback store in SQL: each item of an agent once, within its limits, flagged when stored."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Join,
    Text,
    and_,
    bindparam,
    delete,
    func,
    select,
    type_coerce,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.schema import Column

from evenmesh_kit.storage.sql import chunks, now_us
from evenmesh_reranker.backends.sql.database import Database, agent_id
from evenmesh_reranker.backends.sql.tables import AGENTS, FEEDBACK, LEASES, TENANTS, TRAININGS
from evenmesh_reranker.domain import Agent, Scope
from evenmesh_reranker.feedback.domain import Feedback, Flag, Limits, Outcome, RecordStatus, StoredFeedback
from evenmesh_reranker.feedback.quality import JudgingHistory, QualityRules
from evenmesh_reranker.metrics import FeedbackSummary

PAGE_BYTES: Final = 2**22
"""Size of rankings, as stored, after which a page ends. Bytes."""
DAY_US: Final = 24 * 3600 * 10**6
"""Length of a day. Microseconds."""
_FETCHED: Final = 16  # rows at a time: a ranking can have 256 KiB


@dataclass(slots=True)
class _AgentState:
    """The stored state of an agent, and what a batch adds to it."""

    id: int
    registered: bool
    stored: int
    flagged: int
    usefulness: float
    day: int
    today: int
    conduct: JudgingHistory
    digests: dict[str, bytes] = field(default_factory=dict)
    judged: dict[int, tuple[float, float]] = field(default_factory=dict)
    contradicted: set[int] = field(default_factory=set)
    runs: list[tuple[float, int]] = field(default_factory=list)
    """Value of each constant run that became long enough in a batch, and items stored at its end."""
    changed: bool = False


@dataclass(slots=True)
class _TenantState:
    """What is stored of a tenant, and what a batch adds to it."""

    numbered: int
    bytes: int
    changed: bool = False


class SqlFeedbackStore:
    """Keeps feedback; several processes may share one. Every method may raise Unavailable.

    Args:
        database: the database of feedback.
        limits: most feedback to accept of each agent.
        rules: which feedback to flag.
        clock: the time. Microseconds since 1970.
    """

    def __init__(
        self,
        database: Database,
        *,
        limits: Limits | None = None,
        rules: QualityRules | None = None,
        clock: Callable[[], int] = now_us,
    ) -> None:
        self._database = database
        self._limits = limits or Limits()
        self._rules = rules or QualityRules()
        self._clock = clock

    async def record(self, batch: Sequence[Feedback]) -> Sequence[Outcome]:
        """Store new items within the limits, all or nothing; durable on return."""
        now = self._clock()
        async with self._database.write() as connection:
            states = await self._agents(connection, {one.agent: None for one in batch}, now)
            await _read_known(connection, states, batch)
            tenants = await _read_tenants(connection, {one.agent.tenant for one in batch})
            outcomes = []
            rows = []
            for one in batch:
                tenant = tenants[one.agent.tenant]
                outcome = self._take(one, states.get(one.agent), tenant)
                outcomes.append(outcome)
                if outcome.status is RecordStatus.STORED:
                    rows.append(_row(one, states[one.agent].id, outcome.flag, now, tenant.numbered))
            if rows:
                await _write_tenants(connection, tenants)
                await connection.execute(FEEDBACK.insert(), rows)
            await self._settle(connection, [one for one in states.values() if one.changed], now)
        return outcomes

    async def find(self, batch: Sequence[Feedback]) -> Sequence[Outcome | None]:
        """Return which items of a batch are stored: DUPLICATE, CONFLICT, or None; change nothing."""
        async with self._database.read() as connection:
            states = await _known_agents(connection, {one.agent: None for one in batch})
            await _read_known(connection, states, batch)
        found = []
        for one in batch:
            state = states.get(one.agent)
            found.append(None if state is None else _replayed(one, state))
        return found

    async def summary(self) -> FeedbackSummary:
        """Return the amount of all feedback and the time of the newest; reads one row for each agent."""
        columns = AGENTS.c
        async with self._database.read() as connection:
            row = (
                await connection.execute(
                    select(func.coalesce(func.sum(columns.stored), 0), func.max(columns.last_feedback_at_us))
                )
            ).one()
        return FeedbackSummary(int(row[0]), row[1])

    async def page(
        self,
        scope: Scope,
        *,
        after: int = 0,
        limit: int = 1000,
        since_us: int = 0,
        include_flagged: bool = False,
    ) -> Sequence[StoredFeedback]:
        """Return the first items of a scope after a sequence number, in order.

        At most ``limit``, and no more after 4 MiB of rankings; none only where there are none.
        """
        columns = FEEDBACK.c
        query = (
            select(FEEDBACK, AGENTS.c.task_id, AGENTS.c.model_id, AGENTS.c.tenant)
            .join(AGENTS, AGENTS.c.id == columns.agent_id)
            .where(AGENTS.c.tenant == scope.tenant)
            .where(columns.sequence > after, columns.recorded_at_us >= since_us)
            .order_by(columns.sequence)
            .limit(limit)
        )
        if not include_flagged:
            query = query.where(columns.flag == Flag.NONE)
        async with self._database.read() as connection:
            if isinstance(scope, Agent):
                number = await agent_id(connection, scope)
                if number is None:
                    return []
                query = query.where(columns.agent_id == number)
            page, size = [], 0
            async for row in await connection.stream(query.execution_options(yield_per=_FETCHED)):
                stored = StoredFeedback(
                    row.sequence,
                    Feedback(
                        id=row.id,
                        query=row.query,
                        passage_id=row.passage_id,
                        agent=Agent(row.task_id, row.model_id, row.tenant),
                        usefulness=row.usefulness,
                        model_version=row.model_version,
                        collection=row.collection,
                        ranking=tuple(json.loads(row.ranking)),
                    ),
                    Flag(row.flag),
                    row.recorded_at_us,
                    row.number,
                )
                page.append(stored)
                size += len(row.ranking)
                if size >= PAGE_BYTES:
                    break
            return page

    async def latest(self) -> int:
        """Return the sequence number of the last item; 0 if there is none. Cheap."""
        async with self._database.read() as connection:
            return await connection.scalar(select(func.max(FEEDBACK.c.sequence))) or 0

    async def delete_before(self, before_us: int, *, limit: int) -> int:
        """Delete at most ``limit`` of the oldest items stored before a time; return how many."""
        recorded = FEEDBACK.c.recorded_at_us
        async with self._database.write() as connection:
            return await _delete(
                connection, recorded < before_us, order=(recorded, FEEDBACK.c.sequence), limit=limit
            )

    async def delete_agent(self, agent: Agent, *, limit: int) -> int | None:
        """Delete at most ``limit`` items of an agent, oldest first, and return how many; None without it.

        With the last of them, which are fewer than ``limit``, everything of the agent is gone: it is not
        registered, nothing is reported of its trainings, and no trainer has it.
        """
        columns = FEEDBACK.c
        async with self._database.write() as connection:
            number = await agent_id(connection, agent)
            if number is None:
                return None
            deleted = await _delete(
                connection, columns.agent_id == number, order=(columns.sequence,), limit=limit
            )
            if deleted < limit:
                for table in (TRAININGS, LEASES):
                    await connection.execute(delete(table).where(table.c.agent_id == number))
                await connection.execute(delete(AGENTS).where(AGENTS.c.id == number))
        return deleted

    async def _agents(
        self, connection: AsyncConnection, agents: Iterable[Agent], now: int
    ) -> dict[Agent, _AgentState]:
        """Return the states of a batch's agents; new agents are added while their tenant has room."""
        agents = list(agents)
        states = await _known_agents(connection, agents)
        unknown: dict[str, list[Agent]] = defaultdict(list)
        for agent in agents:
            if agent not in states and not self._limits.registered_only:
                unknown[agent.tenant].append(agent)
        for tenant, new_agents in unknown.items():
            there = select(func.count()).where(AGENTS.c.tenant == tenant)
            room = self._limits.agents - (await connection.scalar(there) or 0)
            if new := new_agents[: max(0, room)]:
                await connection.execute(AGENTS.insert(), [asdict(one) for one in new])
                states |= await _known_agents(connection, new)
        day = now // DAY_US
        for state in states.values():
            if state.day != day:
                state.day, state.today = day, 0
        return states

    def _take(self, one: Feedback, state: _AgentState | None, tenant: _TenantState) -> Outcome:
        """Return the outcome of the next item, and update the states with it."""
        if state is None:
            return Outcome(
                RecordStatus.UNREGISTERED if self._limits.registered_only else RecordStatus.TOO_MANY_AGENTS
            )
        replayed = _replayed(one, state)
        if replayed is not None:
            return replayed
        if self._limits.registered_only and not state.registered:
            return Outcome(RecordStatus.UNREGISTERED)
        if state.stored >= self._limits.total:
            return Outcome(RecordStatus.OVER_TOTAL)
        if state.today >= self._limits.per_day:
            return Outcome(RecordStatus.OVER_DAY)
        if tenant.bytes + one.size > self._limits.tenant_bytes:
            return Outcome(RecordStatus.OVER_BYTES)
        earlier = state.judged.get(one.judged)
        flag = state.conduct.judge(one.usefulness, earlier, self._rules)
        low, high = earlier or (one.usefulness, one.usefulness)
        state.judged[one.judged] = min(low, one.usefulness), max(high, one.usefulness)
        if flag is Flag.CONTRADICTION:
            state.contradicted.add(one.judged)
        state.digests[one.id] = one.digest
        state.stored += 1
        if state.conduct.run == self._rules.constant_run:
            state.runs.append((one.usefulness, state.stored))
        state.today += 1
        state.flagged += flag is not Flag.NONE
        state.usefulness += one.usefulness
        state.changed = tenant.changed = True
        tenant.numbered += 1
        tenant.bytes += one.size
        return Outcome(RecordStatus.STORED, flag)

    async def _settle(self, connection: AsyncConnection, states: Sequence[_AgentState], now: int) -> None:
        """Flag earlier feedback that a batch contradicts or that joins a constant run; store the states."""
        columns = FEEDBACK.c
        by_id = {state.id: state for state in states}
        pairs = [(state.id, judged) for state in states for judged in sorted(state.contradicted)]
        if pairs:
            found = _found(connection, pairs, columns.agent_id, columns.judged)
            counts = (
                select(columns.agent_id, func.count())
                .select_from(found)
                .where(columns.flag == Flag.NONE)
                .group_by(columns.agent_id)
            )
            for number, count in await connection.execute(counts):
                by_id[number].flagged += count
            of_pairs = select(columns.sequence).select_from(found)
            await connection.execute(
                update(FEEDBACK)
                .where(columns.sequence.in_(of_pairs), columns.flag == Flag.NONE)
                .values(flag=int(Flag.CONTRADICTION))
            )
        for state in states:
            for value, stored in state.runs:
                # The run began before it was long enough to flag: flag all of it. Others may have come since.
                newest = (
                    select(columns.sequence)
                    .where(columns.agent_id == state.id)
                    .order_by(columns.sequence.desc())
                    .limit(self._rules.constant_run)
                    .offset(state.stored - stored)
                )
                unflagged = and_(columns.agent_id == state.id, columns.flag == Flag.NONE)
                flagged = await connection.execute(
                    update(FEEDBACK)
                    .where(unflagged, columns.usefulness == value, columns.sequence.in_(newest))
                    .values(flag=int(Flag.CONSTANT))
                )
                state.flagged += flagged.rowcount
        rows = [_agent_row(state, now) for state in states]
        if rows:
            changes: dict[str, Any] = {name: bindparam(f"new_{name}") for name in rows[0]}
            values = [{f"new_{name}": value for name, value in row.items()} for row in rows]
            this = AGENTS.c.id == changes.pop("id")
            await connection.execute(update(AGENTS).where(this).values(changes), values)


def _agent_row(state: _AgentState, now: int) -> dict[str, Any]:
    """Return what changes in the row of an agent, and its number as ``id``."""
    return {
        "id": state.id,
        "stored": state.stored,
        "flagged": state.flagged,
        "usefulness": state.usefulness,
        "day": state.day,
        "today": state.today,
        "last_feedback_at_us": now,
        "value": state.conduct.value,
        "run": state.conduct.run,
        "judged_again": state.conduct.judged_again,
        "contradicted": state.conduct.contradicted,
    }


def _found(connection: AsyncConnection, rows: Sequence[tuple[Any, ...]], *like: Column[Any]) -> Join:
    """Return the rows of a table with these values: one statement for all, each found by an index.

    SQLite reads the whole table for pairs after ``IN``.

    Args:
        connection: where it is used.
        rows: [n], of texts and numbers, one for each column.
        like: columns of the table.
    """
    if connection.dialect.name == "sqlite":
        each = func.json_each(json.dumps(rows)).table_valued("value", name="each")
        values = (func.json_extract(each.c.value, f"$[{at}]") for at in range(len(like)))
        typed = [type_coerce(one, of.type).label(of.name) for one, of in zip(values, like, strict=True)]
        given = select(*typed).subquery("given")
    else:
        types = [BigInteger() if isinstance(of.type, BigInteger) else Text() for of in like]
        arrays = [
            bindparam(None, list(one), type_=ARRAY(type_))
            for one, type_ in zip(zip(*rows, strict=True), types, strict=True)
        ]
        names = [f"c{at}" for at in range(len(like))]
        each = func.unnest(*arrays).table_valued(*names, name="each").render_derived()
        labelled = (each.c[name].label(of.name) for name, of in zip(names, like, strict=True))
        given = select(*labelled).subquery("given")
    return given.join(like[0].table, and_(*(of == given.c[of.name] for of in like)))


async def _delete(
    connection: AsyncConnection, which: ColumnElement[bool], *, order: Sequence[Column[Any]], limit: int
) -> int:
    """Delete the first of these items, count them no more for agents and tenants, and return how many."""
    columns = FEEDBACK.c
    counted = (columns.sequence, columns.agent_id, columns.flag, columns.usefulness, columns.bytes)
    found = await connection.execute(
        select(*counted, AGENTS.c.tenant)
        .join(AGENTS, AGENTS.c.id == columns.agent_id)
        .where(which)
        .order_by(*order)
        .limit(limit)
    )
    rows = found.all()
    less: dict[int, list[float]] = defaultdict(lambda: [0, 0, 0.0])
    freed: Counter[str] = Counter()
    for row in rows:
        counts = less[row.agent_id]
        counts[0] += 1
        counts[1] += row.flag != Flag.NONE
        counts[2] += row.usefulness
        freed[row.tenant] += row.bytes
    for name, size in freed.items():
        await connection.execute(
            update(TENANTS).where(TENANTS.c.tenant == name).values(bytes=TENANTS.c.bytes - size)
        )
    for part in chunks([row.sequence for row in rows]):
        await connection.execute(delete(FEEDBACK).where(FEEDBACK.c.sequence.in_(part)))
    for number, (stored, flagged, usefulness) in less.items():
        await connection.execute(
            update(AGENTS)
            .where(AGENTS.c.id == number)
            .values(
                stored=AGENTS.c.stored - int(stored),
                flagged=AGENTS.c.flagged - int(flagged),
                usefulness=AGENTS.c.usefulness - usefulness,
            )
        )
    return len(rows)


async def _read_tenants(connection: AsyncConnection, tenants: Iterable[str]) -> dict[str, _TenantState]:
    states = {tenant: _TenantState(0, 0) for tenant in tenants}
    for part in chunks(list(states)):
        for row in await connection.execute(select(TENANTS).where(TENANTS.c.tenant.in_(part))):
            states[row.tenant] = _TenantState(row.numbered, row.bytes)
    return states


async def _write_tenants(connection: AsyncConnection, tenants: Mapping[str, _TenantState]) -> None:
    for tenant, state in tenants.items():
        if state.changed:
            values = {"numbered": state.numbered, "bytes": state.bytes}
            found = await connection.execute(update(TENANTS).where(TENANTS.c.tenant == tenant).values(values))
            if not found.rowcount:
                await connection.execute(TENANTS.insert().values(tenant=tenant, **values))


async def _known_agents(connection: AsyncConnection, agents: Iterable[Agent]) -> dict[Agent, _AgentState]:
    names = [(one.tenant, one.task_id, one.model_id) for one in agents]
    states: dict[Agent, _AgentState] = {}
    if not names:
        return states
    columns = AGENTS.c
    found = _found(connection, names, columns.tenant, columns.task_id, columns.model_id)
    for row in await connection.execute(select(AGENTS).select_from(found)):
        states[Agent(row.task_id, row.model_id, row.tenant)] = _AgentState(
            id=row.id,
            registered=row.registered_at_us is not None,
            stored=row.stored,
            flagged=row.flagged,
            usefulness=row.usefulness,
            day=row.day,
            today=row.today,
            conduct=JudgingHistory(row.value, row.run, row.judged_again, row.contradicted),
        )
    return states


async def _read_known(
    connection: AsyncConnection, states: dict[Agent, _AgentState], batch: Sequence[Feedback]
) -> None:
    """Read what is stored for a batch: the digests of its ids, and earlier judgements."""
    columns = FEEDBACK.c
    by_id = {state.id: state for state in states.values()}
    items = [(states[one.agent].id, one) for one in batch if one.agent in states]
    if not items:
        return
    ids = list({(number, one.id) for number, one in items})
    found = _found(connection, ids, columns.agent_id, columns.id)
    stored = select(columns.agent_id, columns.id, columns.digest).select_from(found)
    for number, id_, digest in await connection.execute(stored):
        by_id[number].digests[id_] = bytes(digest)
    pairs = list({(number, one.judged) for number, one in items})
    found = _found(connection, pairs, columns.agent_id, columns.judged)
    keys = (columns.agent_id, columns.judged)
    ranges = (
        select(*keys, func.min(columns.usefulness), func.max(columns.usefulness))
        .select_from(found)
        .group_by(*keys)
    )
    for number, judged, low, high in await connection.execute(ranges):
        by_id[number].judged[judged] = low, high


def _replayed(one: Feedback, state: _AgentState) -> Outcome | None:
    known = state.digests.get(one.id)
    if known is None:
        return None
    return Outcome(RecordStatus.DUPLICATE if known == one.digest else RecordStatus.CONFLICT)


def _row(one: Feedback, agent: int, flag: Flag, now: int, number: int) -> dict[str, Any]:
    return {
        "agent_id": agent,
        "id": one.id,
        "digest": one.digest,
        "query": one.query,
        "query_key": one.query_key,
        "passage_id": one.passage_id,
        "judged": one.judged,
        "usefulness": one.usefulness + 0.0,
        "model_version": one.model_version,
        "collection": one.collection,
        "ranking": json.dumps(one.ranking, ensure_ascii=False),
        "flag": int(flag),
        "recorded_at_us": now,
        "number": number,
        "bytes": one.size,
    }
