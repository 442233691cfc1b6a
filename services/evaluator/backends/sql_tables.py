"""Tables of the SQL store, for SQLite and PostgreSQL; a change needs a script in ``schema/versions``."""

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

from services.evaluator.domain import CONVERSATION, MEASURED

METADATA: Final = MetaData()

_BIG: Final = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows only in an INTEGER key


def _text() -> Any:
    # Compared by code points, as Python and SQLite do, whatever language the database speaks.
    return String().with_variant(postgresql.VARCHAR(collation="C"), "postgresql")


OBSERVATIONS: Final = Table(
    "observations",
    METADATA,
    Column("sequence", _BIG, primary_key=True, autoincrement=True),
    Column("tenant", _text(), nullable=False),
    Column("id", _text(), nullable=False),
    Column("run_id", _text(), nullable=False),
    Column("query_id", _text(), nullable=False),
    Column("observed_at_us", BigInteger, nullable=False),
    Column("stored_at_us", BigInteger, nullable=False),
    Column("collection", _text(), nullable=False),
    Column("retriever", _text(), nullable=False),
    Column("reranker", _text(), nullable=False),
    Column("generator", _text(), nullable=False),
    Column("alpha", Double),
    Column("metric", _text(), nullable=False),
    Column("num_rankings", Integer, nullable=False),
    Column("num_unanswered", Integer, nullable=False),
    *(Column(name, Double) for name in (*MEASURED, *CONVERSATION)),
    Column("payload", LargeBinary, nullable=False),
    UniqueConstraint("tenant", "id", name="observations_by_id"),
    Index("observations_of_run", "tenant", "run_id", "sequence"),
)
"""Every observation once, by tenant: what it is grouped by, what it measured, and it as it came (a proto)."""

PEAKS: Final = Table(
    "peaks",
    METADATA,
    Column("id", _BIG, primary_key=True, autoincrement=True),
    Column("tenant", _text(), nullable=False),
    Column("collection", _text(), nullable=False),
    Column("query_id", _text(), nullable=False),
    Column("generator", _text(), nullable=False),
    Column("metric", _text(), nullable=False),
    Column("utility", Double, nullable=False),
    UniqueConstraint("tenant", "query_id", "collection", "generator", "metric", name="peaks_of_queries"),
)
"""u_max: the largest utility of any answer to a query, by generator and metric, over a tenant's runs."""

SCOPES: Final = Table(
    "scopes",
    METADATA,
    Column("id", _BIG, primary_key=True, autoincrement=True),
    Column("tenant", _text(), nullable=False),
    Column("kind", SmallInteger, nullable=False),
    Column("key", _text(), nullable=False),
    Column("num_observations", BigInteger, nullable=False),
    Column("started_at_us", BigInteger, nullable=False),
    Column("updated_at_us", BigInteger, nullable=False),
    Column("num_segments", BigInteger, nullable=False),
    UniqueConstraint("tenant", "kind", "key", name="scopes_by_key"),
    Index("scopes_of_tenant", "tenant", "kind", "id"),
)
"""Runs and configurations of tenants; ``num_segments`` counts the segments ever written for it."""

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
"""Aggregates of the observations of a scope, packed; their bucket, and how often they were merged."""

CONVERSATIONS: Final = Table(
    "conversations",
    METADATA,
    Column("tenant", _text(), primary_key=True),
    Column("run_id", _text(), primary_key=True),
    Column("conversation_id", _text(), primary_key=True),
    Column("configuration_id", BigInteger, nullable=False, index=True),
    Column("observed_at_us", BigInteger, nullable=False),
    Column("observation_id", _text(), nullable=False),
    *(Column(name, Double) for name in CONVERSATION),
)
"""Every conversation of a run as it was last observed, ties of time broken by the observation's id."""
