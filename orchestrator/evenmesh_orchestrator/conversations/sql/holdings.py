"""What tenants hold of the database of conversations, and what is removed to make room."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, delete, exists, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from evenmesh_kit.storage.sql import chunks
from evenmesh_orchestrator.conversations.conversation import Limits
from evenmesh_orchestrator.conversations.sql.database import Database
from evenmesh_orchestrator.conversations.sql.tables import CONVERSATIONS, HOLDERS, TENANTS, TURNS
from evenmesh_orchestrator.conversations.store import loser
from evenmesh_orchestrator.observations.shares import DynamicShares

_EXPIRED_AT_ONCE: Final = 1_000
"""Most conversations that one transaction removes because their time is over: others wait for it."""
_LONGEST_LEASE_US: Final = 3_600 * 10**6
"""No orchestrator lives longer without a sign: a later end is of a clock that was ahead. Microseconds."""


class Holdings:
    """What tenants hold, read in a transaction and changed with it.

    Args:
        database: the database.
        limits: what they may hold.
        connection: of the transaction.
    """

    def __init__(self, database: Database, limits: Limits, connection: AsyncConnection) -> None:
        self._database = database
        self._connection = connection
        self.conversations = DynamicShares(limits.conversations, limits.tenant_share)
        self.bytes = DynamicShares(limits.bytes, limits.tenant_share)

    async def read(self) -> None:
        """Read what tenants hold."""
        rows = (
            await self._connection.execute(select(TENANTS.c.tenant, TENANTS.c.conversations, TENANTS.c.bytes))
        ).all()
        self.conversations.replace({tenant: count for tenant, count, _ in rows})
        self.bytes.replace({tenant: size for tenant, _, size in rows})

    async def add(self, tenant: str, conversations: int, size: int) -> None:
        """Count what a tenant adds, or, with negative numbers, what it gives back."""
        self.conversations.add(tenant, conversations)
        self.bytes.add(tenant, size)
        columns = TENANTS.c
        row = self._database.insert(TENANTS).values(tenant=tenant, conversations=conversations, bytes=size)
        await self._connection.execute(
            row.on_conflict_do_update(
                index_elements=["tenant"],
                set_={
                    "conversations": columns.conversations + row.excluded.conversations,
                    "bytes": columns.bytes + row.excluded.bytes,
                },
            )
        )

    async def make_room(self, shares: DynamicShares, tenant: str, amount: int, now: int) -> bool:
        """Remove those that are over, and then idle ones, until an amount fits; return whether it does.

        The caller undoes the transaction where it does not.

        Args:
            shares: :attr:`conversations` or :attr:`bytes`.
            tenant: who adds.
            amount: what it adds.
            now: the time. Microseconds since 1970.
        """
        if shares.room(tenant) >= amount:
            return True
        await self.expire(now)
        columns = CONVERSATIONS.c
        query = select(columns.tenant, columns.id, columns.num_bytes).where(idle(now))
        waiting: dict[str, deque[Any]] = defaultdict(deque)
        for row in await self._connection.execute(query.order_by(columns.used_at_us, columns.id)):
            waiting[row.tenant].append(row)
        removed: list[Any] = []
        while shares.room(tenant) < amount:
            most = loser(shares, tenant, {owner for owner, rows in waiting.items() if rows})
            if most is None:
                return False
            removed.append(waiting[most].popleft())
            self._count(removed[-1], -1)
        await self._delete(removed)
        return True

    async def remove(self, rows: Sequence[Any]) -> None:
        """Remove conversations: rows with tenant, id and num_bytes."""
        for row in rows:
            self._count(row, -1)
        await self._delete(rows)

    async def expire(self, now: int) -> None:
        """Remove idle conversations whose time is over, and orchestrators that live no longer."""
        columns = CONVERSATIONS.c
        query = select(columns.tenant, columns.id, columns.num_bytes)
        over = query.where(columns.expires_at_us <= now, idle(now)).order_by(columns.expires_at_us)
        await self.remove((await self._connection.execute(over.limit(_EXPIRED_AT_ONCE))).all())
        await self._connection.execute(delete(HOLDERS).where(~_lives(now)))

    def _count(self, row: Any, sign: int) -> None:
        self.conversations.add(row.tenant, sign)
        self.bytes.add(row.tenant, sign * row.num_bytes)

    async def _delete(self, rows: Sequence[Any]) -> None:
        ids: dict[str, list[str]] = defaultdict(list)
        sizes: Counter[str] = Counter()
        for row in rows:
            ids[row.tenant].append(row.id)
            sizes[row.tenant] += row.num_bytes
        columns = TENANTS.c
        for tenant, gone in ids.items():
            for part in chunks(gone):
                for table in (TURNS, CONVERSATIONS):
                    await self._connection.execute(
                        delete(table).where(table.c.tenant == tenant, table.c.id.in_(part))
                    )
            await self._connection.execute(
                update(TENANTS)
                .where(columns.tenant == tenant)
                .values(conversations=columns.conversations - len(gone), bytes=columns.bytes - sizes[tenant])
            )
            # The names of tenants are data, too.
            await self._connection.execute(
                delete(TENANTS).where(columns.tenant == tenant, columns.conversations <= 0)
            )


def idle(now: int) -> ColumnElement[bool]:
    """Return whether no stream uses a conversation: it has no holder, or one that lives no longer."""
    alive = exists().where(and_(HOLDERS.c.holder == CONVERSATIONS.c.holder, _lives(now)))
    return or_(CONVERSATIONS.c.holder.is_(None), ~alive)


def _lives(now: int) -> ColumnElement[bool]:
    return and_(HOLDERS.c.until_us > now, HOLDERS.c.until_us <= now + _LONGEST_LEASE_US)
