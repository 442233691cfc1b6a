"""Tenants: what was there belongs to the tenant ``default``, as everything did."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"

_TABLES = ("observations", "peaks", "scopes", "conversations")


def upgrade(op: Operations) -> None:
    """Add the tenant to every key."""
    if op.get_bind().dialect.name == "postgresql":
        _alter(op)
    else:
        _rebuild(op)


def _alter(op: Operations) -> None:
    text = postgresql.VARCHAR(collation="C")
    for name in _TABLES:
        op.add_column(name, sa.Column("tenant", text, nullable=False, server_default="default"))
        op.alter_column(name, "tenant", server_default=None)
    op.drop_constraint("observations_id_key", "observations", type_="unique")
    op.create_unique_constraint("observations_by_id", "observations", ["tenant", "id"])
    op.drop_index("observations_of_run", "observations")
    op.create_index("observations_of_run", "observations", ["tenant", "run_id", "sequence"])
    op.drop_constraint("peaks_of_queries", "peaks", type_="unique")
    peak = ["tenant", "query_id", "collection", "generator", "metric"]
    op.create_unique_constraint("peaks_of_queries", "peaks", peak)
    op.drop_constraint("scopes_by_key", "scopes", type_="unique")
    op.create_unique_constraint("scopes_by_key", "scopes", ["tenant", "kind", "key"])
    op.create_index("scopes_of_tenant", "scopes", ["tenant", "kind", "id"])
    op.drop_constraint("conversations_pkey", "conversations", type_="primary")
    op.create_primary_key("conversations_pkey", "conversations", ["tenant", "run_id", "conversation_id"])


def _rebuild(op: Operations) -> None:
    # SQLite cannot change keys: tables are written anew, constraints aside as they were.
    here = op.get_bind()
    keys = {
        "observations": [sa.UniqueConstraint("tenant", "id", name="observations_by_id")],
        "peaks": [
            sa.UniqueConstraint(
                "tenant", "query_id", "collection", "generator", "metric", name="peaks_of_queries"
            )
        ],
        "scopes": [sa.UniqueConstraint("tenant", "kind", "key", name="scopes_by_key")],
        "conversations": [],
    }
    op.drop_index("observations_of_run", "observations")
    op.drop_index("ix_conversations_configuration_id", "conversations")
    for name in _TABLES:
        before = f"{name}_before"
        op.rename_table(name, before)
        old = sa.inspect(here).get_columns(before)
        # Keys of SQLite's own numbering come first, others get the tenant in front.
        primary = sa.inspect(here).get_pk_constraint(before)["constrained_columns"]
        numbered = len(primary) == 1
        columns: list[Any] = [
            sa.Column(
                one["name"],
                one["type"],
                nullable=one["nullable"],
                primary_key=one["name"] in primary,
                autoincrement=numbered,
            )
            for one in old
        ]
        columns.insert(
            int(numbered), sa.Column("tenant", sa.String, nullable=False, primary_key=not numbered)
        )
        op.create_table(name, *columns, *keys[name])
        listed = ", ".join(f'"{one["name"]}"' for one in old)
        op.execute(
            f"INSERT INTO {name} (tenant, {listed}) SELECT 'default', {listed} FROM {before}"  # noqa: S608
        )
        op.drop_table(before)
    op.create_index("observations_of_run", "observations", ["tenant", "run_id", "sequence"])
    op.create_index("scopes_of_tenant", "scopes", ["tenant", "kind", "id"])
    op.create_index("ix_conversations_configuration_id", "conversations", ["configuration_id"])
