"""Tenants: what was there belongs to the tenant ``default``, as everything did."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"


def upgrade(op: Operations) -> None:
    """Add the tenant to the keys of agents and trainings."""
    if op.get_bind().dialect.name == "postgresql":
        _alter(op)
    else:
        _rebuild(op)
    # Versions before Alembic would go on as if there were no tenants; they refuse what is not 1.
    op.execute("UPDATE schema_version SET version = 2")


def _alter(op: Operations) -> None:
    text = postgresql.VARCHAR(collation="C")
    for name in ("agents", "trainings"):
        op.add_column(name, sa.Column("tenant", text, nullable=False, server_default="default"))
        op.alter_column(name, "tenant", server_default=None)
    op.drop_constraint("agents_by_ids", "agents", type_="unique")
    op.create_unique_constraint("agents_by_ids", "agents", ["tenant", "task_id", "model_id"])
    op.drop_constraint("trainings_pkey", "trainings", type_="primary")
    op.create_primary_key("trainings_pkey", "trainings", ["tenant", "agent_id"])


def _rebuild(op: Operations) -> None:
    # SQLite cannot change keys: tables are written anew, numbers and what was given out of them as they were.
    names = _moved(op, "agents")
    op.create_table(
        "agents",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("tenant", sa.String, nullable=False),
        sa.Column("task_id", sa.String, nullable=False),
        sa.Column("model_id", sa.String, nullable=False),
        sa.Column("description", sa.String, nullable=False, server_default=""),
        sa.Column("registered_at_us", sa.BigInteger),
        sa.Column("stored", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("flagged", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("usefulness", sa.Double, nullable=False, server_default="0"),
        sa.Column("day", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("today", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("last_feedback_at_us", sa.BigInteger),
        sa.Column("value", sa.Double),
        sa.Column("run", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("judged_again", sa.Double, nullable=False, server_default="0"),
        sa.Column("contradicted", sa.Double, nullable=False, server_default="0"),
        sa.UniqueConstraint("tenant", "task_id", "model_id", name="agents_by_ids"),
        sqlite_autoincrement=True,
    )
    _copied(op, "agents", names)
    names = _moved(op, "trainings")
    op.create_table(
        "trainings",
        sa.Column("tenant", sa.String, primary_key=True),
        sa.Column("agent_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("state", sa.SmallInteger, nullable=False),
        sa.Column("progress", sa.Double, nullable=False),
        sa.Column("message", sa.String, nullable=False),
        sa.Column("trained_upto", sa.BigInteger, nullable=False),
        sa.Column("candidate_version", sa.String, nullable=False),
        sa.Column("updated_at_us", sa.BigInteger, nullable=False),
    )
    _copied(op, "trainings", names)


def _moved(op: Operations, name: str) -> str:
    """Rename a table, and return the names of its columns as SQL lists them."""
    op.rename_table(name, f"{name}_before")
    columns = sa.inspect(op.get_bind()).get_columns(f"{name}_before")
    return ", ".join(f'"{one["name"]}"' for one in columns)


def _copied(op: Operations, name: str, columns: str) -> None:
    op.execute(
        f"INSERT INTO {name} (tenant, {columns}) SELECT 'default', {columns} FROM {name}_before"  # noqa: S608
    )
    op.drop_table(f"{name}_before")
