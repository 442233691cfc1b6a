"""The database of feedback."""

from __future__ import annotations

from sqlalchemy import URL, and_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from evenmesh_kit.storage.sql import SqlDatabase
from evenmesh_reranker.backends.sql.schema import SCHEMA
from evenmesh_reranker.backends.sql.tables import AGENTS
from evenmesh_reranker.domain import Agent


class Database(SqlDatabase):
    """The SQLite file or PostgreSQL database with the tables of feedback.

    Args:
        url: database with an async driver, such as ``sqlite+aiosqlite:///FILE``.
        lock_timeout_s: how long to wait for a locked SQLite database. Seconds, [0, 60].
    """

    def __init__(self, url: URL, *, lock_timeout_s: float = 5.0) -> None:
        super().__init__(url, SCHEMA, lock_timeout_s=lock_timeout_s)


async def agent_id(connection: AsyncConnection, agent: Agent) -> int | None:
    """Return the id of an agent; None if it neither registered nor gave feedback."""
    columns = AGENTS.c
    here = and_(
        columns.tenant == agent.tenant, columns.task_id == agent.task_id, columns.model_id == agent.model_id
    )
    found: int | None = await connection.scalar(select(columns.id).where(here))
    return found
