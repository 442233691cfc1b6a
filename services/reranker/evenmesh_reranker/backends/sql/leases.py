"""Leases of agents by trainers, in SQL: one row with holder and expiry for each agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlalchemy import and_, delete, func, not_, or_, select

from evenmesh_kit.storage.sql import now_us
from evenmesh_reranker.backends.sql.database import Database, agent_id
from evenmesh_reranker.backends.sql.tables import LEASES
from evenmesh_reranker.domain import Agent

_LONGEST_US: Final = 3_600 * 10**6
"""No lease ends later: a later end is of a clock that went backwards. Microseconds."""


class SqlLeases:
    """Gives each agent to one trainer at a time, and agents to so many trainers at a time.

    A lease that its holder does not extend ends after ``lease_s``, and others may take it. So another trainer
    goes on where one died.

    An agent that was deleted is lost to its holder, also if there is a new one with its ids since: what was
    learned from the deleted one's feedback must not serve.

    Clocks of machines with the same database must agree to well within ``lease_s``.

    Args:
        database: the database of feedback.
        holder: name of this trainer, unique for each process.
        lease_s: duration of a lease. Seconds, (0, inf).
        at_once: most holders at a time, [1, inf); None: as many as there are agents.
        clock: the time. Microseconds since 1970.
    """

    def __init__(
        self,
        database: Database,
        holder: str,
        *,
        lease_s: float,
        at_once: int | None = None,
        clock: Callable[[], int] = now_us,
    ) -> None:
        self._database = database
        self._holder = holder
        self._lease_us = int(lease_s * 10**6)
        self._at_once = at_once
        self._clock = clock
        self._held: dict[Agent, int] = {}

    async def take(self, agent: Agent) -> bool:
        """Take an agent, or extend its lease.

        Return False if it is unknown, another trainer has it, or as many trainers have agents as may.

        Raises:
            Unavailable: the database cannot be reached, or failed.
        """
        async with self._database.write() as connection:
            number = await agent_id(connection, agent)
            if number is None or self._held.get(agent, number) != number:
                self._held.pop(agent, None)
                return False
            now = self._clock()
            held = and_(LEASES.c.until_us >= now, LEASES.c.until_us <= now + _LONGEST_US)
            if self._at_once is not None:
                others = select(func.count(LEASES.c.holder.distinct())).where(
                    LEASES.c.holder != self._holder, held
                )
                if (await connection.scalar(others) or 0) >= self._at_once:
                    return False
            values = {"holder": self._holder, "until_us": now + self._lease_us}
            insert = self._database.insert(LEASES).values(agent_id=number, **values)
            done = await connection.execute(
                insert.on_conflict_do_update(
                    index_elements=["agent_id"],
                    set_=values,
                    where=or_(LEASES.c.holder == self._holder, not_(held)),
                )
            )
        if done.rowcount == 1:
            self._held[agent] = number
        return done.rowcount == 1

    async def give_back(self, agent: Agent) -> None:
        """End the lease; raises as :meth:`take`."""
        self._held.pop(agent, None)
        async with self._database.write() as connection:
            number = await agent_id(connection, agent)
            mine = LEASES.c.holder == self._holder
            await connection.execute(delete(LEASES).where(LEASES.c.agent_id == number, mine))
