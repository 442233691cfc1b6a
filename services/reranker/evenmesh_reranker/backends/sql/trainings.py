"""Reports of trainers and their backlog, in SQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, func, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from evenmesh_kit.storage.sql import now_us
from evenmesh_reranker.backends.sql.database import Database, agent_id
from evenmesh_reranker.backends.sql.tables import AGENTS, FEEDBACK, TRAININGS
from evenmesh_reranker.domain import Agent, AllAgents, Scope
from evenmesh_reranker.feedback.domain import Flag
from evenmesh_reranker.feedback.training import State, Training, TrainingReport

_ALL_AGENTS: Final = 0


class SqlTrainingLog:
    """Keeps reports of trainers. Every method may raise Unavailable.

    Args:
        database: the database of feedback.
        clock: the time. Microseconds since 1970.
    """

    def __init__(self, database: Database, *, clock: Callable[[], int] = now_us) -> None:
        self._database = database
        self._clock = clock

    async def report(self, report: TrainingReport) -> None:
        """Replace the previous report. The report of an unknown agent is dropped."""
        async with self._database.write() as connection:
            number: int | None = _ALL_AGENTS
            if isinstance(report.scope, Agent):
                number = await agent_id(connection, report.scope)
            if number is None:
                return
            values = {
                "state": int(report.state),
                "progress": report.progress,
                "message": report.message,
                "trained_upto": report.trained_upto,
                "candidate_version": report.candidate_version,
                "updated_at_us": self._clock(),
            }
            key = {"tenant": report.scope.tenant, "agent_id": number}
            insert = self._database.insert(TRAININGS).values(**key, **values)
            await connection.execute(insert.on_conflict_do_update(index_elements=list(key), set_=values))

    async def training(self, agent: Agent) -> Training:
        """Return an agent's training and how much of its feedback waits."""
        async with self._database.read() as connection:
            number = await agent_id(connection, agent)
            if number is None:
                return Training(TrainingReport(agent, State.IDLE), 0, 0, None)
            [found] = await self._of_agents(connection, AGENTS.c.id == number)
            return found

    async def trainings(self, tenant: str) -> Sequence[Training]:
        """Return the training of each agent of a tenant, and first that for all agents if one was reported.

        Feedback waits for both, so that both count it.
        """
        everyones = and_(TRAININGS.c.tenant == tenant, TRAININGS.c.agent_id == _ALL_AGENTS)
        async with self._database.read() as connection:
            of_agents = await self._of_agents(connection, AGENTS.c.tenant == tenant)
            row = (await connection.execute(select(TRAININGS).where(everyones))).one_or_none()
            if row is None:
                return of_agents
            waits = and_(
                AGENTS.c.tenant == tenant,
                FEEDBACK.c.flag == Flag.NONE,
                FEEDBACK.c.sequence > row.trained_upto,
            )
            pending, queries = (
                await connection.execute(
                    select(func.count(), func.count(FEEDBACK.c.query_key.distinct()))
                    .select_from(FEEDBACK.join(AGENTS, AGENTS.c.id == FEEDBACK.c.agent_id))
                    .where(waits)
                )
            ).one()
            return [_training(AllAgents(tenant), row, pending, queries), *of_agents]

    async def trainings_of_agents(self) -> Sequence[Training]:
        """Return the training of every agent of every tenant, by the agents' ids: trainers serve all."""
        async with self._database.read() as connection:
            return await self._of_agents(connection, true())

    async def _of_agents(self, connection: AsyncConnection, which: ColumnElement[bool]) -> list[Training]:
        waits = and_(
            FEEDBACK.c.agent_id == AGENTS.c.id,
            FEEDBACK.c.flag == Flag.NONE,
            FEEDBACK.c.sequence > func.coalesce(TRAININGS.c.trained_upto, 0),
        )
        of_agent = AGENTS.outerjoin(TRAININGS, TRAININGS.c.agent_id == AGENTS.c.id)
        counts = (
            select(
                AGENTS.c.id,
                func.count(FEEDBACK.c.sequence).label("pending"),
                func.count(FEEDBACK.c.query_key.distinct()).label("queries"),
            )
            .select_from(of_agent.outerjoin(FEEDBACK, waits))
            .where(which)
            .group_by(AGENTS.c.id)
            .subquery()
        )
        query = (
            select(
                AGENTS.c.task_id,
                AGENTS.c.model_id,
                AGENTS.c.tenant.label("agents_tenant"),
                TRAININGS,
                counts.c.pending,
                counts.c.queries,
            )
            .select_from(of_agent.join(counts, counts.c.id == AGENTS.c.id))
            .order_by(AGENTS.c.id)
        )
        return [
            _training(
                Agent(row.task_id, row.model_id, row.agents_tenant),
                None if row.updated_at_us is None else row,
                row.pending,
                row.queries,
            )
            for row in await connection.execute(query)
        ]


def _training(scope: Scope, row: Any | None, pending: int, queries: int) -> Training:
    if row is None:
        return Training(TrainingReport(scope, State.IDLE), pending, queries, None)
    report = TrainingReport(
        scope, State(row.state), row.progress, row.message, row.trained_upto, row.candidate_version
    )
    return Training(report, pending, queries, row.updated_at_us)
