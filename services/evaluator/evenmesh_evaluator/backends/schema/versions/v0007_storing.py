"""An index of when observations were stored, by which they are deleted."""

from __future__ import annotations

from alembic.operations import Operations

revision = "0007"
down_revision = "0006"


def upgrade(op: Operations) -> None:
    """Make the index."""
    op.create_index("observations_by_storing", "observations", ["stored_at_us"])
