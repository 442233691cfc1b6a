"""What trainers say and what waits for them, in SQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, func, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from services.reranker.backends.sql.database import Database, agent_id
from services.reranker.backends.sql.feedback import now_us
from services.reranker.backends.sql.tables import AGENTS, FEEDBACK, TRAININGS
from services.reranker.domain import Agent
from services.reranker.feedback.domain import Flag
from services.reranker.feedback.training import State, Training, TrainingReport

_ALL_AGENTS: Final = 0


class SqlTrainingLog:
    """A :class:`services.reranker.feedback.ports.TrainingLog`.

    Args:
        database: where.
        clock: what time it is. Microseconds since 1970.
    """

    def __init__(self, database: Database, *, clock: Callable[[], int] = now_us) -> None:
        self._database = database
        self._clock = clock

    async def report(self, report: TrainingReport) -> None:
        """See the port. Of an agent that was never heard of nothing is kept."""
        async with self._database.write() as connection:
            number: int | None = _ALL_AGENTS
            if report.agent is not None:
                number = await agent_id(connection, report.agent.task_id, report.agent.model_id)
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
            insert = self._database.insert(TRAININGS).values(agent_id=number, **values)
            await connection.execute(insert.on_conflict_do_update(index_elements=["agent_id"], set_=values))

    async def trainings(self, agent: Agent | None = None) -> Sequence[Training]:
        """See the port; that for all agents first, then in the order agents were first heard of."""
        async with self._database.read() as connection:
            if agent is not None:
                number = await agent_id(connection, agent.task_id, agent.model_id)
                if number is None:
                    return [Training(TrainingReport(agent, State.IDLE), 0, 0, None)]
                return await self._of_agents(connection, AGENTS.c.id == number)
            row = (
                await connection.execute(select(TRAININGS).where(TRAININGS.c.agent_id == _ALL_AGENTS))
            ).one_or_none()
            upto = 0 if row is None else row.trained_upto
            waits = and_(FEEDBACK.c.flag == Flag.NONE, FEEDBACK.c.sequence > upto)
            pending, queries = (
                await connection.execute(
                    select(func.count(), func.count(FEEDBACK.c.query_key.distinct())).where(waits)
                )
            ).one()
            return [
                _training(None, row, pending, queries),
                *await self._of_agents(connection, true()),
            ]

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
            select(AGENTS.c.task_id, AGENTS.c.model_id, TRAININGS, counts.c.pending, counts.c.queries)
            .select_from(of_agent.join(counts, counts.c.id == AGENTS.c.id))
            .order_by(AGENTS.c.id)
        )
        return [
            _training(
                Agent(row.task_id, row.model_id),
                None if row.updated_at_us is None else row,
                row.pending,
                row.queries,
            )
            for row in await connection.execute(query)
        ]


def _training(agent: Agent | None, row: Any | None, pending: int, queries: int) -> Training:
    if row is None:
        return Training(TrainingReport(agent, State.IDLE), pending, queries, None)
    report = TrainingReport(
        agent, State(row.state), row.progress, row.message, row.trained_upto, row.candidate_version
    )
    return Training(report, pending, queries, row.updated_at_us)
