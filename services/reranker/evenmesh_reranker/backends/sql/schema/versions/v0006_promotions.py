"""Promotions: which version serves each scope, for rerankers that share a database."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"


def upgrade(op: Operations) -> None:
    """Create the tables."""
    text: Any = sa.String().with_variant(postgresql.VARCHAR(collation="C"), "postgresql")
    op.create_table(
        "promotions",
        sa.Column("tenant", text, primary_key=True),
        sa.Column("everyone", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("task_id", text, primary_key=True),
        sa.Column("model_id", text, primary_key=True),
        sa.Column("serving", text),
        sa.Column("history", text, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("changed_at_us", sa.BigInteger, nullable=False),
    )
    op.create_index("promotions_by_revision", "promotions", ["revision"])
    op.create_table(
        "withdrawn",
        sa.Column("version", text, primary_key=True),
        sa.Column("since_us", sa.BigInteger, nullable=False),
    )
