"""What SQLAlchemy leaves undone for a SQLite database on an event loop."""

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
    """Has a database keep a write-ahead log; a file that does so already is not touched.

    Who opens a file first changes it, alone with it, and SQLite lets nobody wait for that: others who open it
    at the same moment are refused at once, and so they try again, while the event loop goes on.

    Raises:
        sqlite3.OperationalError: it was locked for two seconds, or cannot be written.
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
    """Has a transaction undone at once whose task is cancelled in the middle of a statement.

    SQLAlchemy gives such a connection up and closes it. But the cancelled call, through its traceback, still
    holds the statement, and SQLite closes no connection before its last statement is gone: the transaction
    would stay open, and the database locked for every other writer, until garbage is collected.
    """
    event.listen(engine.sync_engine, "invalidate", _undo)


def _undo(connection: Any, _record: Any, _error: BaseException | None) -> None:
    # Waits its turn in the connection's thread, behind the statement that was cancelled.
    with contextlib.suppress(sqlite3.Error, ValueError):
        connection.rollback()
