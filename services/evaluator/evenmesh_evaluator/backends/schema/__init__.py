"""The schema of the database of observations, and the revision of databases older than Alembic."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Connection, inspect

from evenmesh_evaluator.backends.sql_tables import METADATA
from evenmesh_kit.storage.migrations import Schema


def _unversioned(connection: Connection) -> str | None:
    tables = inspect(connection)
    if tables.has_table("run_moments"):
        return "0001"
    return "0002" if tables.has_table("segments") else None


SCHEMA: Final = Schema(
    tables=METADATA,
    scripts=Path(__file__).parent,
    version_table="evenmesh_evaluator_schema",
    unversioned=_unversioned,
    what="observations",
)
"""The schema; add a script to ``versions`` with every change of
:mod:`evenmesh_evaluator.backends.sql_tables`."""
