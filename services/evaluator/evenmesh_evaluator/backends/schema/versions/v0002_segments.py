"""Segments instead of a run's sums, numbered observations, peaks, conversations.

What the first schema kept of each observation is whole, so the observations are set aside, to be measured
again and stored anew when the store has opened (:mod:`evenmesh_evaluator.backends.sql_version_1`).
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"

_MEASURED = (
    "ee_d",
    "ee_d_norm",
    "ee_r",
    "ee_r_norm",
    "expected_utility",
    "vote_agreement",
    "retriever_error",
    "hallucination_error",
    "extraction_error",
    "lucky_guess",
)
_CONVERSATION = ("conversation_relevance", "conversation_group_fairness", "conversation_combined")


def upgrade(op: Operations) -> None:
    """Set the observations aside and make the tables."""
    for name in ("runs", "run_moments", "run_providers", "run_degradations"):
        op.drop_table(name)
    if op.get_bind().execute(sa.text("SELECT 1 FROM observations LIMIT 1")).first() is None:
        op.drop_table("observations")
    else:
        op.rename_table("observations", "observations_of_version_1")
        if op.get_bind().dialect.name == "postgresql":  # its index would be in the way of the new table's
            op.execute("ALTER INDEX observations_pkey RENAME TO observations_of_version_1_pkey")
    big: Any = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    text: Any = sa.String().with_variant(postgresql.VARCHAR(collation="C"), "postgresql")
    op.create_table(
        "observations",
        sa.Column("sequence", big, primary_key=True, autoincrement=True),
        sa.Column("id", text, nullable=False, unique=True),
        sa.Column("run_id", text, nullable=False),
        sa.Column("query_id", text, nullable=False),
        sa.Column("observed_at_us", sa.BigInteger, nullable=False),
        sa.Column("stored_at_us", sa.BigInteger, nullable=False),
        sa.Column("collection", text, nullable=False),
        sa.Column("retriever", text, nullable=False),
        sa.Column("reranker", text, nullable=False),
        sa.Column("generator", text, nullable=False),
        sa.Column("alpha", sa.Double),
        sa.Column("metric", text, nullable=False),
        sa.Column("num_rankings", sa.Integer, nullable=False),
        sa.Column("num_unanswered", sa.Integer, nullable=False),
        *(sa.Column(name, sa.Double) for name in (*_MEASURED, *_CONVERSATION)),
        sa.Column("payload", sa.LargeBinary, nullable=False),
    )
    op.create_index("observations_of_run", "observations", ["run_id", "sequence"])
    op.create_table(
        "peaks",
        sa.Column("id", big, primary_key=True, autoincrement=True),
        sa.Column("collection", text, nullable=False),
        sa.Column("query_id", text, nullable=False),
        sa.Column("generator", text, nullable=False),
        sa.Column("metric", text, nullable=False),
        sa.Column("utility", sa.Double, nullable=False),
        sa.UniqueConstraint("query_id", "collection", "generator", "metric", name="peaks_of_queries"),
    )
    op.create_table(
        "scopes",
        sa.Column("id", big, primary_key=True, autoincrement=True),
        sa.Column("kind", sa.SmallInteger, nullable=False),
        sa.Column("key", text, nullable=False),
        sa.Column("num_observations", sa.BigInteger, nullable=False),
        sa.Column("started_at_us", sa.BigInteger, nullable=False),
        sa.Column("updated_at_us", sa.BigInteger, nullable=False),
        sa.Column("num_segments", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("kind", "key", name="scopes_by_key"),
    )
    op.create_table(
        "segments",
        sa.Column("scope_id", sa.BigInteger, primary_key=True),
        sa.Column("sequence", sa.BigInteger, primary_key=True),
        sa.Column("span", sa.SmallInteger, nullable=False),
        sa.Column("start", sa.BigInteger, nullable=False),
        sa.Column("level", sa.SmallInteger, nullable=False),
        sa.Column("state", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "conversations",
        sa.Column("run_id", text, primary_key=True),
        sa.Column("conversation_id", text, primary_key=True),
        sa.Column("configuration_id", sa.BigInteger, nullable=False),
        sa.Column("observed_at_us", sa.BigInteger, nullable=False),
        sa.Column("observation_id", text, nullable=False),
        *(sa.Column(name, sa.Double) for name in _CONVERSATION),
    )
    op.create_index("ix_conversations_configuration_id", "conversations", ["configuration_id"])
