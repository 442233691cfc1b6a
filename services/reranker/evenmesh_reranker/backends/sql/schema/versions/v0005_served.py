"""Served rankings by tenant, with the bytes of each tenant's."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"


def upgrade(op: Operations) -> None:
    """Add the tenant of what was served; nobody's is left until it is too old."""
    text = postgresql.VARCHAR(collation="C") if op.get_bind().dialect.name == "postgresql" else sa.String()
    op.add_column("served", sa.Column("tenant", text, nullable=False, server_default=""))
    op.add_column("served", sa.Column("upto", sa.BigInteger, nullable=False, server_default="0"))
    op.create_index("served_of_tenant", "served", ["tenant", "upto"])
