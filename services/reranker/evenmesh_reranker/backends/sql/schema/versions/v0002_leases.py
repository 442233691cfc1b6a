"""Leases: which trainer has which agent."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"


def upgrade(op: Operations) -> None:
    """Create the table."""
    text: Any = sa.String().with_variant(postgresql.VARCHAR(collation="C"), "postgresql")
    op.create_table(
        "leases",
        sa.Column("agent_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("holder", text, nullable=False),
        sa.Column("until_us", sa.BigInteger, nullable=False),
    )
