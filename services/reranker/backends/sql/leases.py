"""Which trainer trains which agent, in SQL: a row that says who, and until when."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import delete, or_

from services.reranker.backends.sql.database import Database, agent_id
from services.reranker.backends.sql.feedback import now_us
from services.reranker.backends.sql.tables import LEASES
from services.reranker.domain import Agent


class SqlLeases:
    """A :class:`services.reranker.online.ports.Leases`.

    Clocks of machines with the same database must agree to well within ``lease_s``.

    Args:
        database: where.
        holder: who; another name for each process.
        lease_s: how long an agent is kept from others. Seconds, (0, inf).
        clock: what time it is. Microseconds since 1970.
    """

    def __init__(
        self, database: Database, holder: str, *, lease_s: float, clock: Callable[[], int] = now_us
    ) -> None:
        self._database = database
        self._holder = holder
        self._lease_us = int(lease_s * 10**6)
        self._clock = clock

    async def take(self, agent: Agent) -> bool:
        """See the port. An agent that was never heard of cannot be had."""
        async with self._database.write() as connection:
            number = await agent_id(connection, agent)
            if number is None:
                return False
            now = self._clock()
            values = {"holder": self._holder, "until_us": now + self._lease_us}
            insert = self._database.insert(LEASES).values(agent_id=number, **values)
            done = await connection.execute(
                insert.on_conflict_do_update(
                    index_elements=["agent_id"],
                    set_=values,
                    where=or_(LEASES.c.holder == self._holder, LEASES.c.until_us < now),
                )
            )
            return done.rowcount == 1

    async def give_back(self, agent: Agent) -> None:
        """See the port."""
        async with self._database.write() as connection:
            number = await agent_id(connection, agent)
            mine = LEASES.c.holder == self._holder
            await connection.execute(delete(LEASES).where(LEASES.c.agent_id == number, mine))
