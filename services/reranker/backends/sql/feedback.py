"""Feedback in SQL: each item of an agent once, within the agent's limits, flagged as it is stored."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from sqlalchemy import and_, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from services.reranker.backends.sql.database import Database, agent_id
from services.reranker.backends.sql.tables import AGENTS, FEEDBACK
from services.reranker.domain import Agent, Audience
from services.reranker.feedback.domain import Fate, Feedback, Flag, Limits, Outcome, StoredFeedback
from services.reranker.feedback.quality import Conduct, Rules
from services.reranker.metrics import FeedbackSummary

_CHUNK: Final = 10_000  # keys per SELECT … IN, below every database's limit of parameters
DAY_US: Final = 24 * 3600 * 10**6
"""A day. Microseconds."""


def now_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


@dataclass(slots=True)
class _Giver:
    """An agent as a batch finds it, and what the batch adds to it."""

    id: int
    registered: bool
    stored: int
    flagged: int
    usefulness: float
    day: int
    today: int
    conduct: Conduct
    digests: dict[str, bytes] = field(default_factory=dict)
    judged: dict[int, tuple[float, float]] = field(default_factory=dict)
    contradicted: set[int] = field(default_factory=set)
    runs_out: bool = False
    gave: bool = False


class SqlFeedbackStore:
    """A :class:`services.reranker.feedback.ports.FeedbackStore`.

    Args:
        database: where.
        limits: how much of each agent is taken.
        rules: what of it is flagged.
        clock: what time it is. Microseconds since 1970.
    """

    def __init__(
        self,
        database: Database,
        *,
        limits: Limits | None = None,
        rules: Rules | None = None,
        clock: Callable[[], int] = now_us,
    ) -> None:
        self._database = database
        self._limits = limits or Limits()
        self._rules = rules or Rules()
        self._clock = clock

    async def record(self, batch: Sequence[Feedback]) -> Sequence[Outcome]:
        """See the port."""
        now = self._clock()
        async with self._database.write() as connection:
            givers = await self._givers(connection, {one.agent: None for one in batch}, now)
            await _read_known(connection, givers, batch)
            outcomes = [self._take(one, givers.get(one.agent)) for one in batch]
            rows = [
                _row(one, givers[one.agent].id, outcome.flag, now)
                for one, outcome in zip(batch, outcomes, strict=True)
                if outcome.fate is Fate.STORED
            ]
            if rows:
                await connection.execute(FEEDBACK.insert(), rows)
            for giver in givers.values():
                if giver.gave:
                    await self._settle(connection, giver, now)
        return outcomes

    async def find(self, batch: Sequence[Feedback]) -> Sequence[Outcome | None]:
        """See the port."""
        async with self._database.read() as connection:
            givers = await _known_givers(connection, {one.agent: None for one in batch})
            await _read_known(connection, givers, batch)
        found = []
        for one in batch:
            giver = givers.get(one.agent)
            found.append(None if giver is None else _replayed(one, giver))
        return found

    async def summary(self) -> FeedbackSummary:
        """How much there is of all agents, and when the newest came. Reads a row for each agent."""
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
        whose: Audience,
        *,
        after: int = 0,
        limit: int = 1000,
        since_us: int = 0,
        include_flagged: bool = False,
    ) -> Sequence[StoredFeedback]:
        """See the port."""
        columns = FEEDBACK.c
        query = (
            select(FEEDBACK, AGENTS.c.task_id, AGENTS.c.model_id, AGENTS.c.tenant)
            .join(AGENTS, AGENTS.c.id == columns.agent_id)
            .where(AGENTS.c.tenant == whose.tenant)
            .where(columns.sequence > after, columns.recorded_at_us >= since_us)
            .order_by(columns.sequence)
            .limit(limit)
        )
        if not include_flagged:
            query = query.where(columns.flag == Flag.NONE)
        async with self._database.read() as connection:
            if isinstance(whose, Agent):
                number = await agent_id(connection, whose)
                if number is None:
                    return []
                query = query.where(columns.agent_id == number)
            return [
                StoredFeedback(
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
                )
                for row in await connection.execute(query)
            ]

    async def latest(self) -> int:
        """See the port."""
        async with self._database.read() as connection:
            return await connection.scalar(select(func.max(FEEDBACK.c.sequence))) or 0

    async def delete_before(self, before_us: int, *, limit: int) -> int:
        """See the port."""
        columns = FEEDBACK.c
        async with self._database.write() as connection:
            # The oldest by number: the index is read only as far as what goes.
            oldest = await connection.execute(
                select(
                    columns.sequence,
                    columns.agent_id,
                    columns.flag,
                    columns.usefulness,
                    columns.recorded_at_us,
                )
                .order_by(columns.sequence)
                .limit(limit)
            )
            gone = [row for row in oldest if row.recorded_at_us < before_us]
            less: dict[int, list[float]] = defaultdict(lambda: [0, 0, 0.0])
            for row in gone:
                counts = less[row.agent_id]
                counts[0] += 1
                counts[1] += row.flag != Flag.NONE
                counts[2] += row.usefulness
            for part in _chunks([row.sequence for row in gone]):
                await connection.execute(delete(FEEDBACK).where(columns.sequence.in_(part)))
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
        return len(gone)

    async def _givers(
        self, connection: AsyncConnection, agents: Iterable[Agent], now: int
    ) -> dict[Agent, _Giver]:
        """The agents of a batch; those heard of for the first time are added while their tenant has room."""
        agents = list(agents)
        givers = await _known_givers(connection, agents)
        unknown: dict[str, list[Agent]] = defaultdict(list)
        for agent in agents:
            if agent not in givers and not self._limits.registered_only:
                unknown[agent.tenant].append(agent)
        for tenant, heard_of in unknown.items():
            there = select(func.count()).where(AGENTS.c.tenant == tenant)
            room = self._limits.agents - (await connection.scalar(there) or 0)
            if new := heard_of[: max(0, room)]:
                await connection.execute(AGENTS.insert(), [asdict(one) for one in new])
                givers |= await _known_givers(connection, new)
        day = now // DAY_US
        for giver in givers.values():
            if giver.day != day:
                giver.day, giver.today = day, 0
        return givers

    def _take(self, one: Feedback, giver: _Giver | None) -> Outcome:
        """What becomes of the next item; what it changes is kept in the giver."""
        if giver is None:
            return Outcome(Fate.UNREGISTERED if self._limits.registered_only else Fate.TOO_MANY_AGENTS)
        replayed = _replayed(one, giver)
        if replayed is not None:
            return replayed
        if self._limits.registered_only and not giver.registered:
            return Outcome(Fate.UNREGISTERED)
        if giver.stored >= self._limits.total:
            return Outcome(Fate.OVER_TOTAL)
        if giver.today >= self._limits.per_day:
            return Outcome(Fate.OVER_DAY)
        earlier = giver.judged.get(one.judged)
        flag = giver.conduct.judge(one.usefulness, earlier, self._rules)
        low, high = earlier or (one.usefulness, one.usefulness)
        giver.judged[one.judged] = min(low, one.usefulness), max(high, one.usefulness)
        if flag is Flag.CONTRADICTION:
            giver.contradicted.add(one.judged)
        giver.runs_out |= giver.conduct.run == self._rules.constant_run
        giver.digests[one.id] = one.digest
        giver.stored += 1
        giver.today += 1
        giver.flagged += flag is not Flag.NONE
        giver.usefulness += one.usefulness
        giver.gave = True
        return Outcome(Fate.STORED, flag)

    async def _settle(self, connection: AsyncConnection, giver: _Giver, now: int) -> None:
        """Flags what an agent's batch throws a new light on, and keeps what it adds up to."""
        columns = FEEDBACK.c
        believed = and_(columns.agent_id == giver.id, columns.flag == Flag.NONE)
        for part in _chunks(sorted(giver.contradicted)):
            found = await connection.execute(
                update(FEEDBACK)
                .where(believed, columns.judged.in_(part))
                .values(flag=int(Flag.CONTRADICTION))
            )
            giver.flagged += found.rowcount
        if giver.runs_out:
            # The run began before it was one: all of it tells nothing.
            newest = (
                select(columns.sequence)
                .where(columns.agent_id == giver.id)
                .order_by(columns.sequence.desc())
                .limit(max(giver.conduct.run, self._rules.constant_run))
            )
            same = columns.usefulness == giver.conduct.value
            found = await connection.execute(
                update(FEEDBACK)
                .where(believed, same, columns.sequence.in_(newest))
                .values(flag=int(Flag.CONSTANT))
            )
            giver.flagged += found.rowcount
        await connection.execute(
            update(AGENTS)
            .where(AGENTS.c.id == giver.id)
            .values(
                stored=giver.stored,
                flagged=giver.flagged,
                usefulness=giver.usefulness,
                day=giver.day,
                today=giver.today,
                last_feedback_at_us=now,
                value=giver.conduct.value,
                run=giver.conduct.run,
                judged_again=giver.conduct.judged_again,
                contradicted=giver.conduct.contradicted,
            )
        )


async def _known_givers(connection: AsyncConnection, agents: Iterable[Agent]) -> dict[Agent, _Giver]:
    by_task: dict[tuple[str, str], list[str]] = defaultdict(list)
    for agent in agents:
        by_task[agent.tenant, agent.task_id].append(agent.model_id)
    givers = {}
    columns = AGENTS.c
    for (tenant, task_id), model_ids in by_task.items():
        for part in _chunks(model_ids):
            here = and_(columns.tenant == tenant, columns.task_id == task_id, columns.model_id.in_(part))
            for row in await connection.execute(select(AGENTS).where(here)):
                givers[Agent(row.task_id, row.model_id, row.tenant)] = _Giver(
                    id=row.id,
                    registered=row.registered_at_us is not None,
                    stored=row.stored,
                    flagged=row.flagged,
                    usefulness=row.usefulness,
                    day=row.day,
                    today=row.today,
                    conduct=Conduct(row.value, row.run, row.judged_again, row.contradicted),
                )
    return givers


async def _read_known(
    connection: AsyncConnection, givers: dict[Agent, _Giver], batch: Sequence[Feedback]
) -> None:
    """Reads what is known of a batch: the contents of its ids, and what was judged before."""
    columns = FEEDBACK.c
    items: dict[Agent, list[Feedback]] = defaultdict(list)
    for one in batch:
        items[one.agent].append(one)
    for agent, giver in givers.items():
        here = columns.agent_id == giver.id
        for ids in _chunks(list({one.id for one in items[agent]})):
            rows = await connection.execute(
                select(columns.id, columns.digest).where(here, columns.id.in_(ids))
            )
            giver.digests.update((id_, bytes(digest)) for id_, digest in rows)
        for keys in _chunks(list({one.judged for one in items[agent]})):
            ranges = await connection.execute(
                select(columns.judged, func.min(columns.usefulness), func.max(columns.usefulness))
                .where(here, columns.judged.in_(keys))
                .group_by(columns.judged)
            )
            giver.judged.update((judged, (low, high)) for judged, low, high in ranges)


def _replayed(one: Feedback, giver: _Giver) -> Outcome | None:
    known = giver.digests.get(one.id)
    if known is None:
        return None
    return Outcome(Fate.DUPLICATE if known == one.digest else Fate.CONFLICT)


def _row(one: Feedback, number: int, flag: Flag, now: int) -> dict[str, Any]:
    return {
        "agent_id": number,
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
    }


def _chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for begin in range(0, len(values), _CHUNK):
        yield values[begin : begin + _CHUNK]
