"""The agent registry in SQL."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import and_, func, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from evenmesh_kit.storage.sql import now_us
from evenmesh_reranker.backends.sql.database import Database, agent_id
from evenmesh_reranker.backends.sql.feedback import DAY_US
from evenmesh_reranker.backends.sql.tables import AGENTS
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.feedback.domain import AgentSummary


class SqlAgentRegistry:
    """Keeps agents. Every method may raise Unavailable.

    Args:
        database: the database of feedback.
        clock: the time. Microseconds since 1970.
    """

    def __init__(self, database: Database, *, clock: Callable[[], int] = now_us) -> None:
        self._database = database
        self._clock = clock

    async def register(self, agent: Agent, description: str, *, most: int) -> AgentSummary | None:
        """Register an agent or change its description; durable on return.

        Return None if ``most`` agents of its tenant are registered already.
        """
        now = self._clock()
        async with self._database.write() as connection:
            number = await agent_id(connection, agent)
            known = number is not None and await self._is_registered(connection, number)
            if not known:
                registered = select(func.count(AGENTS.c.registered_at_us)).where(
                    AGENTS.c.tenant == agent.tenant
                )
                if (await connection.scalar(registered) or 0) >= most:
                    return None
            if number is None:
                await connection.execute(AGENTS.insert().values(asdict(agent)))
                number = await agent_id(connection, agent)
            changes: dict[str, Any] = {"description": description}
            if not known:
                changes["registered_at_us"] = now
            here = AGENTS.c.id == number
            await connection.execute(update(AGENTS).where(here).values(**changes))
            return _summary((await connection.execute(select(AGENTS).where(here))).one(), now)

    async def registered(self) -> Sequence[Agent]:
        """Return the registered agents of all tenants, in the order they first appeared."""
        query = (
            select(AGENTS.c.task_id, AGENTS.c.model_id, AGENTS.c.tenant)
            .where(AGENTS.c.registered_at_us.is_not(None))
            .order_by(AGENTS.c.id)
        )
        async with self._database.read() as connection:
            return [Agent(*row) for row in await connection.execute(query)]

    async def agents(
        self,
        tenant: str,
        *,
        skip: int = 0,
        limit: int = 1000,
        among: Collection[tuple[str, str]] | None = None,
    ) -> Sequence[AgentSummary]:
        """Return ``limit`` agents of a tenant after the first ``skip``, in the order they first appeared.

        With ``among``, pairs of task and model, only of these.
        """
        now = self._clock()
        mine = AGENTS.c.tenant == tenant
        if among is not None:
            mine = and_(mine, tuple_(AGENTS.c.task_id, AGENTS.c.model_id).in_(sorted(among)))
        query = select(AGENTS).where(mine).order_by(AGENTS.c.id).offset(skip).limit(limit)
        async with self._database.read() as connection:
            return [_summary(row, now) for row in await connection.execute(query)]

    async def _is_registered(self, connection: AsyncConnection, number: int) -> bool:
        query = select(AGENTS.c.registered_at_us).where(AGENTS.c.id == number)
        return await connection.scalar(query) is not None


def _summary(row: Any, now: int) -> AgentSummary:
    return AgentSummary(
        agent=Agent(row.task_id, row.model_id, row.tenant),
        description=row.description,
        registered_at_us=row.registered_at_us,
        stored=row.stored,
        flagged=row.flagged,
        today=row.today if row.day == now // DAY_US else 0,
        mean_usefulness=min(1.0, max(0.0, row.usefulness / row.stored)) if row.stored else None,
        last_feedback_at_us=row.last_feedback_at_us,
    )
