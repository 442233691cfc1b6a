"""Settings of a service that keeps its state in a SQL database."""

from __future__ import annotations

from typing import ClassVar, Final

from pydantic import Field, field_validator
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from evenmesh.wire.errors import Unavailable
from evenmesh_kit.settings import ServiceSettings, variable
from evenmesh_kit.storage.failures import DatabaseFailure
from evenmesh_kit.storage.postgresql_url import known_parameters, unknown_parameters

_DRIVERS: Final = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}


def known_database(value: str) -> str:
    """Return the URL of a database that we have a driver for; raise ValueError, without it, for another."""
    try:
        url = make_url(value)
    except ArgumentError:
        raise ValueError("must be sqlite:///FILE or postgresql://USER@HOST/NAME") from None
    if url.get_backend_name() not in _DRIVERS:
        raise ValueError("must be a sqlite or postgresql URL")
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise ValueError("must name a file: a database in memory is not durable")
    if url.get_backend_name() == "postgresql" and (unknown := unknown_parameters(url)):
        allowed = ", ".join(known_parameters())
        raise ValueError(f"has parameters that mean nothing here: {', '.join(unknown)}; there are {allowed}")
    return value


def with_driver(value: str) -> URL:
    """Return a URL of :func:`known_database` with its driver."""
    url = make_url(value)
    return url.set(drivername=_DRIVERS[url.get_backend_name()])


class DatabaseSettings(ServiceSettings):
    """Where the database is, and how long to wait for it."""

    DATABASE_FILE: ClassVar[str]
    """The SQLite file where no database is named, below home."""

    database_url: str = Field(default="", repr=False)
    """Database: ``sqlite:///FILE`` or ``postgresql://…``, with libpq's parameters of TLS; empty: a SQLite
    file under home."""
    database_wait_s: float = Field(default=300.0, ge=0, le=3600)
    """Longest wait at the start for a PostgreSQL server that cannot be reached; the service is not ready
    meanwhile, and ends after it. Seconds, [0, 3600]."""
    lock_timeout_s: float = Field(default=5.0, ge=0, le=60)
    """Longest wait for a locked SQLite database. Seconds, [0, 60]."""

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, value: str) -> str:
        return known_database(value) if value else value

    def database(self) -> URL:
        """Return the database's URL with its driver."""
        if not self.database_url:
            return URL.create(_DRIVERS["sqlite"], database=str(self.home / self.DATABASE_FILE))
        return with_driver(self.database_url)

    def remedy(self, error: Unavailable) -> str:
        """Return one line on a database that cannot be opened, which says what to do."""
        if getattr(error, "failure", None) in (
            DatabaseFailure.FULL,
            DatabaseFailure.LOCKED,
            DatabaseFailure.DAMAGED,
        ):
            return error.message  # it says what to do; another place would only hide what is here
        name = variable(self, "database_url" if self.database_url else "home")
        return f"{error.message}; {name} says where it is"
