"""Tables of the database of feedback; a change needs a script in ``schema/versions``."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    UniqueConstraint,
)

from evenmesh_kit.storage.sql import ROW_ID, text_type

METADATA: Final = MetaData()

VERSION: Final = Table("schema_version", METADATA, Column("version", Integer, primary_key=True))
"""One row, read by versions before Alembic: 1 until an incompatible change."""

AGENTS: Final = Table(
    "agents",
    METADATA,
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("tenant", text_type(), nullable=False),
    Column("task_id", text_type(), nullable=False),
    Column("model_id", text_type(), nullable=False),
    Column("description", text_type(), nullable=False, server_default=""),
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
"""Agents that are registered or gave feedback: counts of their feedback, and how consistent it is."""

TENANTS: Final = Table(
    "feedback_tenants",
    METADATA,
    Column("tenant", text_type(), primary_key=True),
    Column("numbered", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
)
"""Number of each tenant's last item of feedback, and the bytes of its items stored now."""

FEEDBACK: Final = Table(
    "feedback",
    METADATA,
    Column("sequence", ROW_ID, primary_key=True, autoincrement=True),
    Column("agent_id", BigInteger, nullable=False),
    Column("id", text_type(), nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("query", text_type(), nullable=False),
    Column("query_key", BigInteger, nullable=False),
    Column("passage_id", text_type(), nullable=False),
    Column("judged", BigInteger, nullable=False),
    Column("usefulness", Double, nullable=False),
    Column("model_version", text_type(), nullable=False),
    Column("collection", text_type(), nullable=False),
    Column("ranking", text_type(), nullable=False),
    Column("flag", SmallInteger, nullable=False),
    Column("recorded_at_us", BigInteger, nullable=False),
    Column("number", BigInteger, nullable=False, server_default="0"),
    Column("bytes", BigInteger, nullable=False, server_default="0"),
    UniqueConstraint("agent_id", "id", name="feedback_by_id"),
    Index("feedback_by_judged", "agent_id", "judged"),
    Index("feedback_of_agent", "agent_id", "sequence"),
    Index("feedback_by_time", "recorded_at_us"),
    # Sequence numbers are never reused, even if the newest items are deleted: trainers resume after one.
    sqlite_autoincrement=True,
)
"""Every item once; ``ranking`` is a JSON list of passage ids, ``number`` counts the tenant's items."""

SERVED: Final = Table(
    "served",
    METADATA,
    Column("sequence", ROW_ID, primary_key=True, autoincrement=True),
    Column("key", LargeBinary, nullable=False),
    Column("passages", LargeBinary, nullable=False),
    Column("served_at_us", BigInteger, nullable=False),
    Column("tenant", text_type(), nullable=False, server_default=""),
    Column("upto", BigInteger, nullable=False, server_default="0"),
    Index("served_by_key", "key", "sequence"),
    Index("served_of_tenant", "tenant", "upto"),
    Index("served_by_time", "served_at_us"),
)
"""Served rankings, as digests; ``upto`` counts the bytes that the tenant has stored up to each, ever."""

TRAININGS: Final = Table(
    "trainings",
    METADATA,
    Column("tenant", text_type(), primary_key=True),
    Column("agent_id", BigInteger, primary_key=True, autoincrement=False),
    Column("state", SmallInteger, nullable=False),
    Column("progress", Double, nullable=False),
    Column("message", text_type(), nullable=False),
    Column("trained_upto", BigInteger, nullable=False),
    Column("candidate_version", text_type(), nullable=False),
    Column("updated_at_us", BigInteger, nullable=False),
)
"""Last report of each trainer; ``agent_id`` 0 is the model that serves all agents of the tenant."""

LEASES: Final = Table(
    "leases",
    METADATA,
    Column("agent_id", BigInteger, primary_key=True, autoincrement=False),
    Column("holder", text_type(), nullable=False),
    Column("until_us", BigInteger, nullable=False),
)
"""The trainer that holds each agent."""

PROMOTIONS: Final = Table(
    "promotions",
    METADATA,
    Column("tenant", text_type(), primary_key=True),
    Column("everyone", SmallInteger, primary_key=True, autoincrement=False),
    Column("task_id", text_type(), primary_key=True),
    Column("model_id", text_type(), primary_key=True),
    Column("serving", text_type()),
    Column("history", text_type(), nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("changed_at_us", BigInteger, nullable=False),
    Index("promotions_by_revision", "revision"),
)
"""The version that serves each agent, or all of a tenant where ``everyone`` is 1 and the ids are empty;
``history`` is a JSON list, ``revision`` grows with every change of any row."""

WITHDRAWN: Final = Table(
    "withdrawn",
    METADATA,
    Column("version", text_type(), primary_key=True),
    Column("since_us", BigInteger, nullable=False),
)
"""Versions that a process is removing."""
