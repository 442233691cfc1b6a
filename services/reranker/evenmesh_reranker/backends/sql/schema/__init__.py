"""The schema of the database of feedback, and the revision of databases older than Alembic."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Connection, insert, inspect, text

from evenmesh.wire.errors import Unavailable
from evenmesh_kit.storage.migrations import Schema
from evenmesh_reranker.backends.sql.tables import METADATA, VERSION

_LAST_UNVERSIONED: Final = 1


def _unversioned(connection: Connection) -> str | None:
    tables = inspect(connection)
    if not tables.has_table("schema_version"):
        return None
    version = connection.scalar(text("SELECT max(version) FROM schema_version"))
    if version != _LAST_UNVERSIONED:
        raise Unavailable(
            "STORE_VERSION", f"the database of feedback is of version {version}, not {_LAST_UNVERSIONED}"
        )
    return "0002" if tables.has_table("leases") else "0001"


def _fill(connection: Connection) -> None:
    """Write what versions of before Alembic read, which know this one as too new for them."""
    connection.execute(insert(VERSION).values(version=_LAST_UNVERSIONED + 1))


SCHEMA: Final = Schema(
    tables=METADATA,
    scripts=Path(__file__).parent,
    version_table="evenmesh_reranker_schema",
    unversioned=_unversioned,
    what="feedback",
    fill=_fill,
)
"""The schema; add a script to ``versions`` with every change of
:mod:`evenmesh_reranker.backends.sql.tables`."""
