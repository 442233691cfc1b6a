"""An index of when observations were stored, by which they are deleted; and a count of what outlives them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0007"
down_revision = "0006"

_KEPT_BYTES = 512
_USAGE = sa.table("tenant_usage", sa.column("tenant"), sa.column("num_bytes"))


def upgrade(op: Operations) -> None:
    """Make the index, and count the queries and conversations that are there."""
    op.create_index("observations_by_storing", "observations", ["stored_at_us"])
    for name in ("peaks", "conversations"):
        of = sa.table(name, sa.column("tenant"))
        number = sa.select(sa.func.count()).where(of.c.tenant == _USAGE.c.tenant).scalar_subquery()
        op.execute(sa.update(_USAGE).values(num_bytes=_USAGE.c.num_bytes + _KEPT_BYTES * number))
