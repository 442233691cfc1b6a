"""Tables of the database of feedback, for SQLite and PostgreSQL; a change needs a script in
``schema/versions``."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    UniqueConstraint,
)
from sqlalchemy.dialects import postgresql

METADATA: Final = MetaData()

_BIG: Final = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows only in an INTEGER key


def _text() -> Any:
    # Compared by code points, as Python and SQLite do, whatever language the database speaks.
    return String().with_variant(postgresql.VARCHAR(collation="C"), "postgresql")


VERSION: Final = Table("schema_version", METADATA, Column("version", Integer, primary_key=True))
"""One row, which versions of ragmesh before Alembic look at; 1 until a change that they cannot bear."""

AGENTS: Final = Table(
    "agents",
    METADATA,
    Column("id", _BIG, primary_key=True, autoincrement=True),
    Column("tenant", _text(), nullable=False),
    Column("task_id", _text(), nullable=False),
    Column("model_id", _text(), nullable=False),
    Column("description", _text(), nullable=False, server_default=""),
    Column("registered_at_us", BigInteger),
    Column("stored", BigInteger, nullable=False, server_default="0"),
    Column("flagged", BigInteger, nullable=False, server_default="0"),
    Column("usefulness", Double, nullable=False, server_default="0"),
    Column("day", BigInteger, nullable=False, server_default="0"),
    Column("today", BigInteger, nullable=False, server_default="0"),
    Column("last_feedback_at_us", BigInteger),
    Column("value", Double),
    Column("run", BigInteger, nullable=False, server_default="0"),
    Column("judged_again", Double, nullable=False, server_default="0"),
    Column("contradicted", Double, nullable=False, server_default="0"),
    UniqueConstraint("tenant", "task_id", "model_id", name="agents_by_ids"),
    sqlite_autoincrement=True,
)
"""Agents of tenants that are registered or gave feedback: what they gave so far, and how they judge."""

FEEDBACK: Final = Table(
    "feedback",
    METADATA,
    Column("sequence", _BIG, primary_key=True, autoincrement=True),
    Column("agent_id", BigInteger, nullable=False),
    Column("id", _text(), nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("query", _text(), nullable=False),
    Column("query_key", BigInteger, nullable=False),
    Column("passage_id", _text(), nullable=False),
    Column("judged", BigInteger, nullable=False),
    Column("usefulness", Double, nullable=False),
    Column("model_version", _text(), nullable=False),
    Column("collection", _text(), nullable=False),
    Column("ranking", _text(), nullable=False),
    Column("flag", SmallInteger, nullable=False),
    Column("recorded_at_us", BigInteger, nullable=False),
    UniqueConstraint("agent_id", "id", name="feedback_by_id"),
    Index("feedback_by_judged", "agent_id", "judged"),
    Index("feedback_of_agent", "agent_id", "sequence"),
    # Numbers are not given again when the newest items are deleted: trainers remember how far they got.
    sqlite_autoincrement=True,
)
"""Every item once; ``ranking`` is a JSON list of passage ids."""

SERVED: Final = Table(
    "served",
    METADATA,
    Column("sequence", _BIG, primary_key=True, autoincrement=True),
    Column("key", LargeBinary, nullable=False),
    Column("passages", LargeBinary, nullable=False),
    Column("served_at_us", BigInteger, nullable=False),
    Index("served_by_key", "key", "sequence"),
)
"""Rankings that were served, as digests."""

TRAININGS: Final = Table(
    "trainings",
    METADATA,
    Column("tenant", _text(), primary_key=True),
    Column("agent_id", BigInteger, primary_key=True, autoincrement=False),
    Column("state", SmallInteger, nullable=False),
    Column("progress", Double, nullable=False),
    Column("message", _text(), nullable=False),
    Column("trained_upto", BigInteger, nullable=False),
    Column("candidate_version", _text(), nullable=False),
    Column("updated_at_us", BigInteger, nullable=False),
)
"""What trainers say; ``agent_id`` 0 is the model that serves all agents of the tenant."""

LEASES: Final = Table(
    "leases",
    METADATA,
    Column("agent_id", BigInteger, primary_key=True, autoincrement=False),
    Column("holder", _text(), nullable=False),
    Column("until_us", BigInteger, nullable=False),
)
"""Which trainer has which agent."""
