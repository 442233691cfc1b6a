"""Indexes of when feedback and served rankings were stored, by which they are deleted."""

from __future__ import annotations

from alembic.operations import Operations

revision = "0006a"
down_revision = "0006"


def upgrade(op: Operations) -> None:
    """Make the indexes."""
    op.create_index("feedback_by_time", "feedback", ["recorded_at_us"])
    op.create_index("served_by_time", "served", ["served_at_us"])
