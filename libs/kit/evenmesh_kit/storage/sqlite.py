"""SQLite on an event loop: what SQLAlchemy does not do for it."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only

_TRIES: Final = 100
_PAUSE_S: Final = 0.02


def write_ahead(cursor: Any) -> None:
    """Switch a database to a write-ahead log, unless it has one.

    The first opener changes the file under an exclusive lock, for which SQLite does not let others wait: it
    rejects them at once. So retry while the event loop runs on.

    Raises:
        sqlite3.OperationalError: the file was locked for two seconds, or cannot be written.
    """
    for left in reversed(range(_TRIES)):
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if not left or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
        await_only(asyncio.sleep(_PAUSE_S))


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
