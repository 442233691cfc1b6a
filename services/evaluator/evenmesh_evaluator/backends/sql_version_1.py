"""Read databases of version 1: they kept whole observations, which are measured and stored anew."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from sqlalchemy import BigInteger, Connection, LargeBinary, String, and_, column, inspect, or_, select, table

from evenmesh_kit.storage.failures import StoreFailure
from evenmesh_kit.storage.sql import SqlDatabase

_KEPT: Final = table(
    "observations_of_version_1",
    column("id", String),
    column("stored_at_us", BigInteger),
    column("payload", LargeBinary),
)
_PAGE: Final = 500


def is_there(connection: Connection) -> bool:
    """Return whether there are observations of version 1, which the schema's script sets aside."""
    return inspect(connection).has_table(_KEPT.name)


async def payloads(database: SqlDatabase) -> AsyncIterator[list[bytes]]:
    """Yield the observations set aside, as received, page by page in the order they were stored."""
    last: tuple[int, str] | None = None
    columns = _KEPT.c
    while True:
        query = select(_KEPT).order_by(columns.stored_at_us, columns.id).limit(_PAGE)
        if last is not None:
            after = and_(columns.stored_at_us == last[0], columns.id > last[1])
            query = query.where(or_(columns.stored_at_us > last[0], after))
        try:
            async with database.read() as connection:
                rows = (await connection.execute(query)).all()
        except StoreFailure:
            async with database.read() as connection:
                if await connection.run_sync(is_there):
                    raise
            return  # another evaluator was faster and dropped them
        if not rows:
            return
        yield [row.payload for row in rows]
        last = (rows[-1].stored_at_us, rows[-1].id)


def drop(connection: Connection) -> None:
    """Drop the observations set aside."""
    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {_KEPT.name}")
