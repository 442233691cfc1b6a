"""Served rankings in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import delete, func, select

from evenmesh_reranker.backends.sql.database import Database
from evenmesh_reranker.backends.sql.tables import SERVED
from evenmesh_reranker.feedback.domain import ServedRanking

_NEWEST: Final = 16  # rankings of a key to recall
_ROW_BYTES: Final = 128
"""What a ranking takes beside its passages, indexes included, about. Bytes."""


class SqlServedStore:
    """Keeps served rankings. Every method may raise Unavailable.

    Args:
        database: the database of feedback.
        tenant_bytes: most bytes of one tenant's rankings; its oldest are deleted, [1, inf).
    """

    def __init__(self, database: Database, *, tenant_bytes: int = 2**30) -> None:
        self._database = database
        self._tenant_bytes = tenant_bytes

    async def remember(self, served: Sequence[ServedRanking]) -> None:
        """Keep rankings; durable on return. A tenant's oldest go where it has more than its share."""
        columns = SERVED.c
        async with self._database.write() as connection:
            newest = select(columns.tenant, func.max(columns.upto)).group_by(columns.tenant)
            tenants = {one.tenant for one in served}
            found = await connection.execute(newest.where(columns.tenant.in_(tenants)))
            upto = dict.fromkeys(tenants, 0) | {row[0]: row[1] for row in found}
            rows = []
            for one in served:
                upto[one.tenant] += _ROW_BYTES + len(one.passages)
                rows.append(
                    {
                        "key": one.key,
                        "passages": one.passages,
                        "served_at_us": one.served_at_us,
                        "tenant": one.tenant,
                        "upto": upto[one.tenant],
                    }
                )
            await connection.execute(SERVED.insert(), rows)
            for tenant, most in upto.items():
                old = (columns.tenant == tenant) & (columns.upto <= most - self._tenant_bytes)
                await connection.execute(delete(SERVED).where(old))

    async def recall(self, key: bytes) -> Sequence[bytes]:
        """Return the passages of the newest few rankings of a key, newest first."""
        query = (
            select(SERVED.c.passages)
            .where(SERVED.c.key == key)
            .order_by(SERVED.c.sequence.desc())
            .limit(_NEWEST)
        )
        async with self._database.read() as connection:
            return [bytes(passages) for passages in await connection.scalars(query)]

    async def forget_before(self, before_us: int, *, limit: int) -> int:
        """Delete at most ``limit`` of the oldest rankings served before a time; return how many."""
        columns = SERVED.c
        async with self._database.write() as connection:
            due = select(columns.sequence).where(columns.served_at_us < before_us)
            due = due.order_by(columns.served_at_us, columns.sequence).limit(limit)
            gone = (await connection.scalars(due)).all()
            if gone:
                await connection.execute(delete(SERVED).where(columns.sequence.in_(gone)))
        return len(gone)
