"""What databases raise, as what the ports say."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from meshkit.errors import Unavailable

_REASONS: Final[dict[int, tuple[str, str]]] = {
    sqlite3.SQLITE_FULL: ("STORE_FULL", "the disk that feedback is kept on is full"),
    sqlite3.SQLITE_READONLY: ("STORE_READ_ONLY", "the database of feedback is read-only"),
    sqlite3.SQLITE_PERM: ("STORE_READ_ONLY", "the database of feedback may not be written"),
    sqlite3.SQLITE_BUSY: ("STORE_LOCKED", "the database of feedback is locked by another process"),
    sqlite3.SQLITE_LOCKED: ("STORE_LOCKED", "the database of feedback is locked"),
}


@contextmanager
def unavailable() -> Iterator[None]:
    """Turns what a database can raise for reasons outside this program into Unavailable."""
    try:
        yield
    except DBAPIError as error:
        raise Unavailable(*_explain(error)) from error
    except (SQLAlchemyError, OSError) as error:  # no connection to be had
        raise Unavailable("STORE_UNAVAILABLE", "the database of feedback cannot be reached") from error


def _explain(error: DBAPIError) -> tuple[str, str]:
    cause: BaseException | None = error.orig
    while cause is not None:
        code = getattr(cause, "sqlite_errorcode", None)
        if isinstance(code, int):
            # The low byte is the primary code, the rest says which variety.
            return _REASONS.get(
                code & 0xFF, ("STORE_UNAVAILABLE", f"the database of feedback failed: {cause}")
            )
        cause = cause.__cause__
    return "STORE_UNAVAILABLE", "the database of feedback failed"
