"""SQLite files of one process or several, without SQLAlchemy."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

_TRIES: Final = 100
_PAUSE_S: Final = 0.02


def connect(
    path: Path, *, synchronous: Literal["FULL", "NORMAL"], timeout_s: float = 5.0, threads: bool = False
) -> sqlite3.Connection:
    """Open a file with a write-ahead log; each statement is a transaction, unless one is begun.

    Args:
        path: the file; its folder exists.
        synchronous: FULL: a commit that returned has reached the disk. NORMAL: a power cut may lose the last.
        timeout_s: how long to wait for a lock. Seconds, [0, inf).
        threads: whether several threads use the connection, one at a time.

    Raises:
        sqlite3.OperationalError: the file cannot be opened or written, or stayed locked.
    """
    connection = sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=not threads)
    try:
        write_ahead(connection)
        connection.execute(f"PRAGMA synchronous={synchronous}")
    except BaseException:
        connection.close()
        raise
    return connection


def write_ahead(cursor: Any, pause: Callable[[float], object] = time.sleep) -> None:
    """Switch a database to a write-ahead log, unless it has one.

    The first opener changes the file under an exclusive lock, for which SQLite does not let others wait: it
    rejects them at once. So retry.

    Args:
        cursor: runs statements.
        pause: waits for some seconds.

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
        pause(_PAUSE_S)
