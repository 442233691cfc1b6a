"""The first schema: observations, and what every run adds up to."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0001"
down_revision = None


def upgrade(op: Operations) -> None:
    """Make the tables."""
    big: Any = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "observations",
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("run_id", sa.String(128), nullable=False),
        sa.Column("query_id", sa.String(128), nullable=False),
        sa.Column("observed_at_us", sa.BigInteger, nullable=False),
        sa.Column("stored_at_us", sa.BigInteger, nullable=False),
        sa.Column("collection", sa.String, nullable=False),
        sa.Column("retriever", sa.String, nullable=False),
        sa.Column("reranker", sa.String, nullable=False),
        sa.Column("generator", sa.String, nullable=False),
        sa.Column("alpha", sa.Double),
        sa.Column("num_rankings", sa.Integer, nullable=False),
        sa.Column("num_unanswered", sa.Integer, nullable=False),
        *(
            sa.Column(name, sa.Double)
            for name in ("ee_d", "ee_d_norm", "ee_r", "ee_r_norm", "expected_utility")
        ),
        sa.Column("payload", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "runs",
        sa.Column("sequence", big, primary_key=True, autoincrement=True),
        sa.Column("run_id", sa.String(128), nullable=False, unique=True),
        sa.Column("num_observations", sa.BigInteger, nullable=False),
        sa.Column("num_rankings", sa.BigInteger, nullable=False),
        sa.Column("num_unanswered", sa.BigInteger, nullable=False),
        sa.Column("started_at_us", sa.BigInteger, nullable=False),
        sa.Column("updated_at_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "run_moments",
        sa.Column("run_id", sa.String(128), primary_key=True),
        sa.Column("quantity", sa.String(64), primary_key=True),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("undefined", sa.BigInteger, nullable=False),
        sa.Column("mean", sa.Double, nullable=False),
        sa.Column("m2", sa.Double, nullable=False),
    )
    op.create_table(
        "run_providers",
        sa.Column("run_id", sa.String(128), primary_key=True),
        sa.Column("provider", sa.String, primary_key=True),
        sa.Column("exposure", sa.Double, nullable=False),
        sa.Column("target", sa.Double),
    )
    op.create_table(
        "run_degradations",
        sa.Column("run_id", sa.String(128), primary_key=True),
        sa.Column("stage", sa.String(32), primary_key=True),
        sa.Column("reason", sa.String(128), primary_key=True),
        sa.Column("count", sa.BigInteger, nullable=False),
    )
