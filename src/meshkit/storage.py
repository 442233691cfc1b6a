"""What databases cannot do when the world around them fails, in words that say what to do."""

from __future__ import annotations

import sqlite3
from enum import StrEnum
from typing import Final

import grpc

from meshkit.errors import Unavailable


class Trouble(StrEnum):
    """Why a database cannot be used; ends the reason of an error, as in ``STORE_FULL``."""

    FULL = "FULL"
    READ_ONLY = "READ_ONLY"
    LOCKED = "LOCKED"
    DAMAGED = "DAMAGED"
    UNAVAILABLE = "UNAVAILABLE"


_OF_SQLITE: Final = {
    sqlite3.SQLITE_FULL: Trouble.FULL,
    sqlite3.SQLITE_IOERR: Trouble.FULL,  # a quota or a limit of a file, which SQLite does not tell
    sqlite3.SQLITE_READONLY: Trouble.READ_ONLY,
    sqlite3.SQLITE_PERM: Trouble.READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: Trouble.READ_ONLY,
    sqlite3.SQLITE_BUSY: Trouble.LOCKED,
    sqlite3.SQLITE_LOCKED: Trouble.LOCKED,
    sqlite3.SQLITE_CORRUPT: Trouble.DAMAGED,
    sqlite3.SQLITE_NOTADB: Trouble.DAMAGED,
}

# SQLSTATE codes, PostgreSQL's appendix A.
_OF_POSTGRESQL: Final = {
    "53100": Trouble.FULL,
    "25006": Trouble.READ_ONLY,
    "42501": Trouble.READ_ONLY,
    "55P03": Trouble.LOCKED,
    "40P01": Trouble.LOCKED,
    "XX001": Trouble.DAMAGED,
    "XX002": Trouble.DAMAGED,
}

_SAID: Final = {
    Trouble.FULL: (
        "the disk of {what} is full, or fails: make room there; nothing of this was kept, send it again then"
    ),
    Trouble.READ_ONLY: "{what} cannot be written: give this service the right to, or a place where it has it",
    Trouble.LOCKED: "{what} is locked by another process for longer than is waited: try again",
    Trouble.DAMAGED: "{what} is damaged: stop this service and bring a backup back with `ragmesh restore`",
    Trouble.UNAVAILABLE: "{what} cannot be reached or failed: see whether its server runs, and its log",
}


def trouble_of(error: BaseException) -> Trouble:
    """What an error of SQLite or PostgreSQL, or whatever caused it, is about."""
    cause: BaseException | None = error
    while cause is not None:
        code = getattr(cause, "sqlite_errorcode", None)
        if isinstance(code, int):
            # The low byte is the primary code, the rest says which variety.
            return _OF_SQLITE.get(code & 0xFF, Trouble.UNAVAILABLE)
        state = getattr(cause, "sqlstate", None)
        if isinstance(state, str) and state in _OF_POSTGRESQL:
            return _OF_POSTGRESQL[state]
        cause = getattr(cause, "orig", None) or cause.__cause__
    return Trouble.UNAVAILABLE


def said(trouble: Trouble, what: str) -> str:
    """One line for a person.

    Args:
        trouble: why.
        what: the store, such as ``the database of feedback``.
    """
    return _SAID[trouble].format(what=what)


class StoreFailure(Unavailable):
    """A store cannot do its work now. RESOURCE_EXHAUSTED where its disk is full: no channel sends that again.

    Args:
        error: what the database raised.
        what: the store, such as ``the database of feedback``.
    """

    def __init__(self, error: BaseException, what: str) -> None:
        trouble = trouble_of(error)
        super().__init__(f"STORE_{trouble}", said(trouble, what))
        if trouble is Trouble.FULL:
            self.code = grpc.StatusCode.RESOURCE_EXHAUSTED
