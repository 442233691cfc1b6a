"""Served rankings in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import delete, select

from evenmesh_reranker.backends.sql.database import Database
from evenmesh_reranker.backends.sql.tables import SERVED
from evenmesh_reranker.feedback.domain import ServedRanking

_NEWEST: Final = 8  # rankings of a key to recall


class SqlServedStore:
    """A :class:`evenmesh_reranker.feedback.ports.ServedStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def remember(self, served: Sequence[ServedRanking]) -> None:
        """See the port."""
        rows = [
            {"key": one.key, "passages": one.passages, "served_at_us": one.served_at_us} for one in served
        ]
        async with self._database.write() as connection:
            await connection.execute(SERVED.insert(), rows)

    async def recall(self, key: bytes) -> Sequence[bytes]:
        """See the port."""
        query = (
            select(SERVED.c.passages)
            .where(SERVED.c.key == key)
            .order_by(SERVED.c.sequence.desc())
            .limit(_NEWEST)
        )
        async with self._database.read() as connection:
            return [bytes(passages) for passages in await connection.scalars(query)]

    async def forget_before(self, before_us: int, *, limit: int) -> int:
        """See the port."""
        columns = SERVED.c
        async with self._database.write() as connection:
            oldest = await connection.execute(
                select(columns.sequence, columns.served_at_us).order_by(columns.sequence).limit(limit)
            )
            gone = [row.sequence for row in oldest if row.served_at_us < before_us]
            if gone:
                await connection.execute(delete(SERVED).where(columns.sequence.in_(gone)))
        return len(gone)
