"""Failures of databases, with messages that say what to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import grpc

from evenmesh.wire.errors import Unavailable


class DatabaseFailure(StrEnum):
    """Why a database cannot be used; the end of an error's reason, such as ``STORE_FULL``."""

    FULL = "FULL"
    READ_ONLY = "READ_ONLY"
    LOCKED = "LOCKED"
    DAMAGED = "DAMAGED"
    UNAVAILABLE = "UNAVAILABLE"


_OF_SQLITE: Final = {
    sqlite3.SQLITE_FULL: DatabaseFailure.FULL,
    sqlite3.SQLITE_IOERR: DatabaseFailure.FULL,  # SQLite reports a quota or a file size limit so
    sqlite3.SQLITE_READONLY: DatabaseFailure.READ_ONLY,
    sqlite3.SQLITE_PERM: DatabaseFailure.READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: DatabaseFailure.READ_ONLY,
    sqlite3.SQLITE_BUSY: DatabaseFailure.LOCKED,
    sqlite3.SQLITE_LOCKED: DatabaseFailure.LOCKED,
    sqlite3.SQLITE_CORRUPT: DatabaseFailure.DAMAGED,
    sqlite3.SQLITE_NOTADB: DatabaseFailure.DAMAGED,
}

# SQLSTATE codes, PostgreSQL's appendix A.
_OF_POSTGRESQL: Final = {
    "53100": DatabaseFailure.FULL,
    "25006": DatabaseFailure.READ_ONLY,
    "42501": DatabaseFailure.READ_ONLY,
    "55P03": DatabaseFailure.LOCKED,
    "40P01": DatabaseFailure.LOCKED,
    "XX001": DatabaseFailure.DAMAGED,
    "XX002": DatabaseFailure.DAMAGED,
}

_MESSAGES: Final = {
    DatabaseFailure.FULL: (
        "the disk of {what} is full, or fails: make room there, then send this again; nothing of it was kept"
    ),
    DatabaseFailure.READ_ONLY: "{what} cannot be written: give this service write access, or another place",
    DatabaseFailure.LOCKED: "another process has locked {what} for too long: try again",
    DatabaseFailure.DAMAGED: "{what} is damaged: stop this service and run `evenmesh restore` with a backup",
    DatabaseFailure.UNAVAILABLE: "{what} cannot be reached or failed: check its server and its log",
}


def failure_of(error: BaseException) -> DatabaseFailure:
    """Return why a database failed, from an error of SQLite or PostgreSQL or its causes."""
    for cause in _causes(error):
        code = getattr(cause, "sqlite_errorcode", None)
        if isinstance(code, int):
            # The low byte is the primary code.
            return _OF_SQLITE.get(code & 0xFF, DatabaseFailure.UNAVAILABLE)
        state = getattr(cause, "sqlstate", None)
        if isinstance(state, str) and state in _OF_POSTGRESQL:
            return _OF_POSTGRESQL[state]
    return DatabaseFailure.UNAVAILABLE


def cause_of(error: BaseException) -> str:
    """Return the kind of a database's error with its SQLSTATE, without its words, which may hold values."""
    *_, cause = _causes(error)
    return " ".join(filter(None, (type(cause).__name__, getattr(cause, "sqlstate", None))))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, that of the driver last."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = getattr(cause, "orig", None) or cause.__cause__


def describe_failure(failure: DatabaseFailure, what: str) -> str:
    """Return one line for a person.

    Args:
        failure: why the database cannot be used.
        what: the store, such as ``the database of feedback``.
    """
    return _MESSAGES[failure].format(what=what)


class StoreFailure(Unavailable):
    """UNAVAILABLE: a store cannot work now; RESOURCE_EXHAUSTED, which is not retried, if its disk is full.

    Args:
        error: what the database raised.
        what: the store, such as ``the database of feedback``.

    Attributes:
        failure: why.
    """

    def __init__(self, error: BaseException, what: str) -> None:
        self.failure = failure = failure_of(error)
        super().__init__(f"STORE_{failure}", describe_failure(failure, what))
        if failure is DatabaseFailure.FULL:
            self.code = grpc.StatusCode.RESOURCE_EXHAUSTED
