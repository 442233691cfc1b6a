"""SQLite on an event loop: what SQLAlchemy does not do for it."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only

from evenmesh_kit.storage import sqlite_file


def write_ahead(connection: Any) -> None:
    """Switch a database to a write-ahead log, unless it has one; the event loop runs on while it is locked.

    Args:
        connection: SQLAlchemy's, to be prepared.

    Raises:
        sqlite3.OperationalError: the file was locked for two seconds, or cannot be written.
    """
    cursor = connection.cursor()
    try:
        sqlite_file.write_ahead(cursor, lambda seconds: await_only(asyncio.sleep(seconds)))
    finally:
        # A cancelled statement runs to its first row and holds its lock until its cursor is closed, also when
        # the connection is closed before.
        cursor.close()


def unlock_when_cancelled(engine: AsyncEngine) -> None:
    """Roll a transaction back at once when its task is cancelled within a statement.

    SQLAlchemy closes such a connection. But the traceback of the cancelled call still holds the statement,
    and SQLite closes no connection before its last statement: the transaction would stay open, and the
    database locked for other writers, until garbage collection.
    """
    event.listen(engine.sync_engine, "invalidate", _roll_back)


def _roll_back(connection: Any, _record: Any, _error: BaseException | None) -> None:
    # Runs in the connection's thread, after the cancelled statement.
    with contextlib.suppress(sqlite3.Error, ValueError):
        connection.rollback()
