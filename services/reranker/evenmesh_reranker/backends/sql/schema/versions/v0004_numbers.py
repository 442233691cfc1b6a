"""Numbers and bytes of each tenant's feedback."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"


def upgrade(op: Operations) -> None:
    """Add numbers within the tenant to what is stored, and sums of bytes by tenant."""
    in_postgres = op.get_bind().dialect.name == "postgresql"
    text = postgresql.VARCHAR(collation="C") if in_postgres else sa.String()
    for name in ("number", "bytes"):
        op.add_column("feedback", sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))
    op.create_table(
        "feedback_tenants",
        sa.Column("tenant", text, primary_key=True),
        sa.Column("numbered", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
    )
    size = "octet_length({})" if in_postgres else "length(CAST({} AS BLOB))"
    sizes = " + ".join(size.format(one) for one in ("id", "query", "passage_id", "collection", "ranking"))
    op.execute(f"UPDATE feedback SET bytes = 256 + {sizes}")  # noqa: S608
    op.execute(
        "UPDATE feedback SET number = numbered.number FROM (SELECT feedback.sequence AS sequence, "
        "row_number() OVER (PARTITION BY agents.tenant ORDER BY feedback.sequence) AS number "
        "FROM feedback JOIN agents ON agents.id = feedback.agent_id) AS numbered "
        "WHERE numbered.sequence = feedback.sequence"
    )
    op.execute(
        "INSERT INTO feedback_tenants (tenant, numbered, bytes) "
        "SELECT agents.tenant, count(*), sum(feedback.bytes) "
        "FROM feedback JOIN agents ON agents.id = feedback.agent_id GROUP BY agents.tenant"
    )
