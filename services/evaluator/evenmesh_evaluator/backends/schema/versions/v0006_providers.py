"""What each configuration showed of each provider by day; it begins empty."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"

_COUNTS = ("num_found", "num_shown", "num_cited", "num_targeted")
_SUMS = (
    "exposure",
    "exposure_squares",
    "target",
    "target_squares",
    "owed_squares",
    "exposure_targeted",
    "balance_target",
    "balance_exposure",
)


def upgrade(op: Operations) -> None:
    """Make the table."""
    text: Any = sa.String().with_variant(postgresql.VARCHAR(collation="C"), "postgresql")
    op.create_table(
        "provider_days",
        sa.Column("tenant", text, primary_key=True),
        sa.Column("provider", text, primary_key=True),
        sa.Column("day", sa.Integer, primary_key=True),
        sa.Column("configuration_id", sa.BigInteger, primary_key=True),
        sa.Column("collection", text, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in _COUNTS),
        *(sa.Column(name, sa.Double, nullable=False) for name in _SUMS),
    )
    op.create_index("provider_days_of_collection", "provider_days", ["tenant", "collection", "day"])
    op.create_index("provider_days_by_day", "provider_days", ["day"])
