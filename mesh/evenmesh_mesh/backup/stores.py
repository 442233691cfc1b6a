"""Find the stores of a mesh that must not be lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from evenmesh_mesh.backup.manifest import BackupError

OUTBOX: Final = "orchestrator/outbox.db"
COLLECTIONS: Final = "collections"
MODELS: Final = "reranker/models"
SOURCES: Final = "sources.yaml"

DATABASES: Final = (
    ("observations", "evaluator", "evaluator/observations.db"),
    ("feedback", "reranker", "reranker/feedback.db"),
)
"""Name, service and default file of each database that may be in PostgreSQL instead."""


@dataclass(frozen=True, slots=True)
class Database:
    """A database: an SQLite file, or one of a PostgreSQL server.

    Attributes:
        name: name of the store.
        path: its path in a backup.
        file: the SQLite file; None for a server.
        server: environment variables of libpq; empty for a file.
    """

    name: str
    path: str
    file: Path | None
    server: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores that a home and the environment of its services name.

    Attributes:
        home: the home.
        databases: observations and feedback.
    """

    home: Path
    databases: tuple[Database, ...]

    @classmethod
    def find(cls, home: Path, environment: Mapping[str, str]) -> Stores:
        """Find the stores of a home.

        Args:
            home: folder that holds everything.
            environment: environment of the services; ``EVENMESH_…_DATABASE_URL`` are read from it.

        Raises:
            BackupError: the URL of a database is malformed.
        """
        databases = []
        for name, service, default in DATABASES:
            variable = f"EVENMESH_{service.upper()}_DATABASE_URL"
            url = environment.get(variable, "")
            if not url:
                databases.append(Database(name, default, home / default, {}))
                continue
            scheme = urlsplit(url).scheme.partition("+")[0]
            if scheme == "sqlite" and "///" in url:
                file = Path(unquote(url.split("///", 1)[1].partition("?")[0]))
                databases.append(Database(name, default, file, {}))
            elif scheme == "postgresql":
                path = str(Path(default).with_suffix(".dump").as_posix())
                databases.append(Database(name, path, None, _libpq(url, variable)))
            else:
                raise BackupError(f"{variable} must be sqlite:///FILE or postgresql://USER@HOST/NAME")
        return cls(home, tuple(databases))


def _libpq(url: str, variable: str) -> dict[str, str]:
    """Translate a URL to libpq's environment variables, which keep a password out of process lists."""
    try:
        parts = urlsplit(url)
        asked = dict(parse_qsl(parts.query))  # where SQLAlchemy has sockets and TLS
        found = {
            "PGHOST": asked.get("host", parts.hostname),
            "PGPORT": asked.get("port") if parts.port is None else str(parts.port),
            "PGSSLMODE": asked.get("sslmode", asked.get("ssl")),
            **{
                f"PG{name.upper()}": asked.get(name)
                for name in ("sslrootcert", "sslcert", "sslkey", "sslcrl")
            },
            "PGUSER": None if parts.username is None else unquote(parts.username),
            "PGPASSWORD": None if parts.password is None else unquote(parts.password),
            "PGDATABASE": unquote(parts.path.lstrip("/")) or None,
        }
    except ValueError:
        raise BackupError(f"{variable} cannot be understood as postgresql://USER@HOST/NAME") from None
    return {name: value for name, value in found.items() if value is not None}
