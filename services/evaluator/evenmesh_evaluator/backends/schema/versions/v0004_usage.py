"""What each tenant keeps, counted from what there is."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"


def upgrade(op: Operations) -> None:
    """Make the table and count."""
    text: Any = sa.String().with_variant(postgresql.VARCHAR(collation="C"), "postgresql")
    op.create_table(
        "tenant_usage",
        sa.Column("tenant", text, primary_key=True),
        sa.Column("num_bytes", sa.BigInteger, nullable=False),
        sa.Column("num_runs", sa.BigInteger, nullable=False),
        sa.Column("num_configurations", sa.BigInteger, nullable=False),
    )
    op.execute(
        """
        INSERT INTO tenant_usage (tenant, num_bytes, num_runs, num_configurations)
        SELECT tenant, CAST(SUM(LENGTH(payload) + 1024) AS BIGINT),
            (SELECT COUNT(*) FROM scopes WHERE scopes.tenant = observations.tenant AND kind = 0),
            (SELECT COUNT(*) FROM scopes WHERE scopes.tenant = observations.tenant AND kind = 1)
        FROM observations GROUP BY tenant
        """
    )
