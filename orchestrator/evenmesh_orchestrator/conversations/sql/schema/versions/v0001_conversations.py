"""The first schema: conversations with their turns, what tenants hold, and which orchestrators live."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None


def upgrade(op: Operations) -> None:
    """Create the tables."""
    text: Any = sa.String().with_variant(postgresql.VARCHAR(collation="C"), "postgresql")
    op.create_table(
        "held_conversations",
        sa.Column("tenant", text, primary_key=True),
        sa.Column("id", text, primary_key=True),
        sa.Column("holder", text),
        sa.Column("lease", text),
        sa.Column("used_at_us", sa.BigInteger, nullable=False),
        sa.Column("expires_at_us", sa.BigInteger, nullable=False),
        sa.Column("format", sa.Integer, nullable=False),
        sa.Column("num_turns", sa.Integer, nullable=False),
        sa.Column("num_words", sa.BigInteger, nullable=False),
        sa.Column("num_bytes", sa.BigInteger, nullable=False),
        sa.Column("relevance", sa.Double),
        sa.Column("run_id", text, nullable=False),
        sa.Column("settings", sa.LargeBinary, nullable=False),
        sa.Column("options", sa.LargeBinary, nullable=False),
    )
    op.create_index("held_conversations_by_expiry", "held_conversations", ["expires_at_us"])
    op.create_table(
        "conversation_turns",
        sa.Column("tenant", text, primary_key=True),
        sa.Column("id", text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("payload", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "conversation_tenants",
        sa.Column("tenant", text, primary_key=True),
        sa.Column("conversations", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "conversation_holders",
        sa.Column("holder", text, primary_key=True),
        sa.Column("until_us", sa.BigInteger, nullable=False),
    )
