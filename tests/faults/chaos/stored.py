"""What the mesh has of what its clients were promised."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import make_url, select

from evenmesh import Addresses, AsyncClient
from evenmesh_reranker.backends.sql.database import Database
from evenmesh_reranker.backends.sql.tables import AGENTS, FEEDBACK
from tests.faults.chaos.load import TIMEOUT_S
from tests.support.postgres import Postgres


async def written(addresses: Addresses) -> dict[str, list[str]]:
    """Ids of passages, by collection."""
    async with AsyncClient(addresses, timeout=TIMEOUT_S) as client:
        return {
            one.name: [passage.id async for passage in client.passages(one.name)]
            for one in await client.collections()
        }


async def feedback_of(postgres: Postgres) -> Counter[str]:
    """Ids of feedback in the database; the sum that agents have agrees with them."""
    database = Database(make_url(postgres.url))
    await database.open()
    async with database.read() as connection:
        stored = Counter(await connection.scalars(select(FEEDBACK.c.id)))
        counted = sum(await connection.scalars(select(AGENTS.c.stored)))
    await database.close()
    assert counted == stored.total()
    return stored
