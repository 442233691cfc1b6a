"""The target of the sampling, beside its fairness dial."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"


def upgrade(op: Operations) -> None:
    """Add the column; what is there has no target."""
    text: Any = sa.String().with_variant(postgresql.VARCHAR(collation="C"), "postgresql")
    op.add_column("observations", sa.Column("target", text, nullable=False, server_default=""))
