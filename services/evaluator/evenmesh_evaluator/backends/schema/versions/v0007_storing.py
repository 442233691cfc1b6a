"""An index of when observations were stored, by which they are deleted; and a count of what outlives them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0007"
down_revision = "0006"

_KEPT_BYTES = 512


def upgrade(op: Operations) -> None:
    """Make the index, and count the queries and conversations that are there."""
    op.create_index("observations_by_storing", "observations", ["stored_at_us"])
    for table in ("peaks", "conversations"):
        number = f"(SELECT COUNT(*) FROM {table} WHERE {table}.tenant = tenant_usage.tenant)"  # noqa: S608 - ours
        op.execute(sa.text(f"UPDATE tenant_usage SET num_bytes = num_bytes + {_KEPT_BYTES} * {number}"))  # noqa: S608
