"""Tables of the SQL store, for SQLite and PostgreSQL; a change needs a script in ``schema/versions``."""

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

from evenmesh_evaluator.domain import CONVERSATION, MEASURED
from evenmesh_kit.storage.sql import ROW_ID, text_type

METADATA: Final = MetaData()

OBSERVATIONS: Final = Table(
    "observations",
    METADATA,
    Column("sequence", ROW_ID, primary_key=True, autoincrement=True),
    Column("tenant", text_type(), nullable=False),
    Column("id", text_type(), nullable=False),
    Column("run_id", text_type(), nullable=False),
    Column("query_id", text_type(), nullable=False),
    Column("observed_at_us", BigInteger, nullable=False),
    Column("stored_at_us", BigInteger, nullable=False),
    Column("collection", text_type(), nullable=False),
    Column("retriever", text_type(), nullable=False),
    Column("reranker", text_type(), nullable=False),
    Column("generator", text_type(), nullable=False),
    Column("alpha", Double),
    Column("target", text_type(), nullable=False, server_default=""),
    Column("metric", text_type(), nullable=False),
    Column("num_rankings", Integer, nullable=False),
    Column("num_unanswered", Integer, nullable=False),
    *(Column(name, Double) for name in (*MEASURED, *CONVERSATION)),
    Column("payload", LargeBinary, nullable=False),
    UniqueConstraint("tenant", "id", name="observations_by_id"),
    Index("observations_of_run", "tenant", "run_id", "sequence"),
    Index("observations_by_storing", "stored_at_us"),
)
"""Every observation once, by tenant: its grouping keys, its measurements, and its proto as received."""

PEAKS: Final = Table(
    "peaks",
    METADATA,
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("tenant", text_type(), nullable=False),
    Column("collection", text_type(), nullable=False),
    Column("query_id", text_type(), nullable=False),
    Column("generator", text_type(), nullable=False),
    Column("metric", text_type(), nullable=False),
    Column("utility", Double, nullable=False),
    UniqueConstraint("tenant", "query_id", "collection", "generator", "metric", name="peaks_of_queries"),
)
"""u_max: the largest utility of any answer to a query, by generator and metric, over a tenant's runs."""

SCOPES: Final = Table(
    "scopes",
    METADATA,
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("tenant", text_type(), nullable=False),
    Column("kind", SmallInteger, nullable=False),
    Column("key", text_type(), nullable=False),
    Column("num_observations", BigInteger, nullable=False),
    Column("started_at_us", BigInteger, nullable=False),
    Column("updated_at_us", BigInteger, nullable=False),
    Column("num_segments", BigInteger, nullable=False),
    UniqueConstraint("tenant", "kind", "key", name="scopes_by_key"),
    Index("scopes_of_tenant", "tenant", "kind", "id"),
)
"""Runs and configurations of tenants; ``num_segments`` counts all segments ever written for it."""

USAGE: Final = Table(
    "tenant_usage",
    METADATA,
    Column("tenant", text_type(), primary_key=True),
    Column("num_bytes", BigInteger, nullable=False),
    Column("num_runs", BigInteger, nullable=False),
    Column("num_configurations", BigInteger, nullable=False),
)
"""What each tenant keeps: bytes of observations, runs and configurations."""

SEGMENTS: Final = Table(
    "segments",
    METADATA,
    Column("scope_id", BigInteger, primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("span", SmallInteger, nullable=False),
    Column("start", BigInteger, nullable=False),
    Column("level", SmallInteger, nullable=False),
    Column("state", LargeBinary, nullable=False),
)
"""Packed aggregates of a scope's observations, with their bucket and merge level."""

PROVIDER_SUMS: Final = (
    "exposure",
    "exposure_squares",
    "target",
    "target_squares",
    "owed_squares",
    "exposure_targeted",
    "balance_target",
    "balance_exposure",
)
"""Sums of a provider's day; the last two are forgotten by a reset of the balance."""
PROVIDER_COUNTS: Final = ("num_found", "num_shown", "num_cited", "num_targeted")
"""Counts of asks of a provider's day."""

PROVIDER_DAYS: Final = Table(
    "provider_days",
    METADATA,
    Column("tenant", text_type(), primary_key=True),
    Column("provider", text_type(), primary_key=True),
    Column("day", Integer, primary_key=True),
    Column("configuration_id", BigInteger, primary_key=True),
    Column("collection", text_type(), nullable=False),
    *(Column(name, BigInteger, nullable=False) for name in PROVIDER_COUNTS),
    *(Column(name, Double, nullable=False) for name in PROVIDER_SUMS),
    Index("provider_days_of_collection", "tenant", "collection", "day"),
    Index("provider_days_by_day", "day"),
)
"""What each configuration showed of each provider on each day, UTC, in days since 1970."""

CONVERSATIONS: Final = Table(
    "conversations",
    METADATA,
    Column("tenant", text_type(), primary_key=True),
    Column("run_id", text_type(), primary_key=True),
    Column("conversation_id", text_type(), primary_key=True),
    Column("configuration_id", BigInteger, nullable=False, index=True),
    Column("observed_at_us", BigInteger, nullable=False),
    Column("observation_id", text_type(), nullable=False),
    *(Column(name, Double) for name in CONVERSATION),
)
"""The last observation of every conversation of a run; ties of time are broken by its id."""
