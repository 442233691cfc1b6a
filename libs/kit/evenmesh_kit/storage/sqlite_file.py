"""SQLite files of one process or several, without SQLAlchemy."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

from evenmesh_kit.storage.rights import keep_owners_rights

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


def make_private(path: Path) -> None:
    """Create a database file if it is missing, and take all others' rights to it and the files beside it.

    The owner gets no right that was taken from it. What it cannot write, or cannot change, is found when the
    file is opened.
    """
    with suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    for one in (path, *(path.with_name(f"{path.name}-{part}") for part in ("wal", "shm"))):
        with suppress(OSError):
            keep_owners_rights(one)
