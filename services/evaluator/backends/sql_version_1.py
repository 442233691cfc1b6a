"""Databases of version 1: their observations were kept whole, so they are measured again and stored anew."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from sqlalchemy import BigInteger, Connection, LargeBinary, String, and_, column, inspect, or_, select, table
from sqlalchemy.ext.asyncio import AsyncEngine

_KEPT: Final = table(
    "observations_of_version_1",
    column("id", String),
    column("stored_at_us", BigInteger),
    column("payload", LargeBinary),
)
_PAGE: Final = 500


def set_aside(connection: Connection) -> bool:
    """Keeps the observations of version 1 under another name and drops the rest of it, if there is any.

    Returns whether there are observations of version 1, set aside now or before.
    """
    tables = inspect(connection)
    if tables.has_table("run_moments"):
        for name in ("runs", "run_moments", "run_providers", "run_degradations"):
            connection.exec_driver_sql(f"DROP TABLE {name}")
        connection.exec_driver_sql(f"ALTER TABLE observations RENAME TO {_KEPT.name}")
        if connection.dialect.name == "postgresql":  # its index would be in the way of the new table's
            connection.exec_driver_sql(f"ALTER INDEX observations_pkey RENAME TO {_KEPT.name}_pkey")
        return True
    return tables.has_table(_KEPT.name)


async def payloads(reader: AsyncEngine) -> AsyncIterator[list[bytes]]:
    """The observations that were set aside, as they came, page by page in the order they were stored."""
    last: tuple[int, str] | None = None
    columns = _KEPT.c
    while True:
        query = select(_KEPT).order_by(columns.stored_at_us, columns.id).limit(_PAGE)
        if last is not None:
            after = and_(columns.stored_at_us == last[0], columns.id > last[1])
            query = query.where(or_(columns.stored_at_us > last[0], after))
        async with reader.connect() as connection:
            rows = (await connection.execute(query)).all()
        if not rows:
            return
        yield [row.payload for row in rows]
        last = (rows[-1].stored_at_us, rows[-1].id)


def drop(connection: Connection) -> None:
    """Lets go of what was set aside."""
    connection.exec_driver_sql(f"DROP TABLE {_KEPT.name}")
