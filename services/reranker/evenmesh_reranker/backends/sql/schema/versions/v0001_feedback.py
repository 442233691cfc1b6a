"""The first schema: agents, their feedback, what was served, trainings."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None


def upgrade(op: Operations) -> None:
    """Create the tables."""
    big: Any = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    text: Any = sa.String().with_variant(postgresql.VARCHAR(collation="C"), "postgresql")
    version = op.create_table("schema_version", sa.Column("version", sa.Integer, primary_key=True))
    op.bulk_insert(version, [{"version": 1}])
    op.create_table(
        "agents",
        sa.Column("id", big, primary_key=True, autoincrement=True),
        sa.Column("task_id", text, nullable=False),
        sa.Column("model_id", text, nullable=False),
        sa.Column("description", text, nullable=False, server_default=""),
        sa.Column("registered_at_us", sa.BigInteger),
        sa.Column("stored", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("flagged", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("usefulness", sa.Double, nullable=False, server_default="0"),
        sa.Column("day", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("today", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("last_feedback_at_us", sa.BigInteger),
        sa.Column("value", sa.Double),
        sa.Column("run", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("judged_again", sa.Double, nullable=False, server_default="0"),
        sa.Column("contradicted", sa.Double, nullable=False, server_default="0"),
        sa.UniqueConstraint("task_id", "model_id", name="agents_by_ids"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "feedback",
        sa.Column("sequence", big, primary_key=True, autoincrement=True),
        sa.Column("agent_id", sa.BigInteger, nullable=False),
        sa.Column("id", text, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("query", text, nullable=False),
        sa.Column("query_key", sa.BigInteger, nullable=False),
        sa.Column("passage_id", text, nullable=False),
        sa.Column("judged", sa.BigInteger, nullable=False),
        sa.Column("usefulness", sa.Double, nullable=False),
        sa.Column("model_version", text, nullable=False),
        sa.Column("collection", text, nullable=False),
        sa.Column("ranking", text, nullable=False),
        sa.Column("flag", sa.SmallInteger, nullable=False),
        sa.Column("recorded_at_us", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("agent_id", "id", name="feedback_by_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("feedback_by_judged", "feedback", ["agent_id", "judged"])
    op.create_index("feedback_of_agent", "feedback", ["agent_id", "sequence"])
    op.create_table(
        "served",
        sa.Column("sequence", big, primary_key=True, autoincrement=True),
        sa.Column("key", sa.LargeBinary, nullable=False),
        sa.Column("passages", sa.LargeBinary, nullable=False),
        sa.Column("served_at_us", sa.BigInteger, nullable=False),
    )
    op.create_index("served_by_key", "served", ["key", "sequence"])
    op.create_table(
        "trainings",
        sa.Column("agent_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("state", sa.SmallInteger, nullable=False),
        sa.Column("progress", sa.Double, nullable=False),
        sa.Column("message", text, nullable=False),
        sa.Column("trained_upto", sa.BigInteger, nullable=False),
        sa.Column("candidate_version", text, nullable=False),
        sa.Column("updated_at_us", sa.BigInteger, nullable=False),
    )
