"""The tables of the outbox, and how files of earlier versions become them."""

from __future__ import annotations

import sqlite3
from typing import Final

from evenmesh_kit.security.caller import DEFAULT_TENANT

_TABLES: Final = (
    """
    CREATE TABLE IF NOT EXISTS outbox (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT,
        tenant TEXT NOT NULL,
        id TEXT NOT NULL,
        payload BLOB NOT NULL,
        bytes INTEGER NOT NULL,
        UNIQUE (tenant, id)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS outbox_attempts (
        sequence INTEGER PRIMARY KEY,
        attempts INTEGER NOT NULL
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS outbox_set_aside (
        sequence INTEGER PRIMARY KEY,
        tenant TEXT NOT NULL,
        id TEXT NOT NULL,
        payload BLOB,
        bytes INTEGER NOT NULL,
        reason TEXT NOT NULL,
        attempts INTEGER NOT NULL,
        at_us INTEGER NOT NULL
    )
    """,
    # With the sizes, so that counting what tenants hold does not read the entries.
    "CREATE INDEX IF NOT EXISTS outbox_holdings ON outbox (tenant, sequence, bytes)",
    "CREATE INDEX IF NOT EXISTS outbox_set_aside_holdings ON outbox_set_aside (tenant, id, bytes)",
)


def upgrade(connection: sqlite3.Connection) -> None:
    """Bring a file to the tables of this version, in the caller's transaction."""
    columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(outbox)")]
    older = bool(columns) and "bytes" not in columns
    if older:
        connection.execute("ALTER TABLE outbox RENAME TO outbox_before")
        connection.execute("DROP INDEX IF EXISTS outbox_of_tenant")
    for statement in _TABLES:
        connection.execute(statement)
    if older:
        tenant = "tenant" if "tenant" in columns else "?1"
        given = () if "tenant" in columns else (DEFAULT_TENANT,)
        every = f"SELECT sequence, {tenant}, id, payload, LENGTH(payload)"
        # All of them, so that no number is given again.
        connection.execute(
            f"INSERT INTO outbox (sequence, tenant, id, payload, bytes) {every} FROM outbox_before"
            " ORDER BY sequence",
            given,
        )
        connection.execute(
            "INSERT INTO outbox_set_aside (sequence, tenant, id, payload, bytes, reason, attempts, at_us)"
            f" {every}, refused, 0, 0 FROM outbox_before WHERE refused IS NOT NULL",
            given,
        )
        connection.execute("DELETE FROM outbox WHERE sequence IN (SELECT sequence FROM outbox_set_aside)")
        connection.execute("DROP TABLE outbox_before")
