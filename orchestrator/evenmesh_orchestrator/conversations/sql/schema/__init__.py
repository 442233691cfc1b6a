"""The schema of the database of conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Connection

from evenmesh_kit.storage.migrations import Schema
from evenmesh_orchestrator.conversations.sql.tables import METADATA


def _unversioned(_: Connection) -> None:
    """Return None: every database of conversations has a revision."""


SCHEMA: Final = Schema(
    tables=METADATA,
    scripts=Path(__file__).parent,
    version_table="evenmesh_orchestrator_schema",
    unversioned=_unversioned,
    what="conversations",
)
"""The schema; add a script to ``versions`` with every change of
:mod:`evenmesh_orchestrator.conversations.sql.tables`."""
