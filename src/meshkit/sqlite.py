"""What SQLAlchemy leaves undone for a SQLite database on an event loop."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine


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
