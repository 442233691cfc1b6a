"""Tables of the database of conversations; a change needs a script in ``schema/versions``."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Double, Index, Integer, LargeBinary, MetaData, Table

from evenmesh_kit.storage.sql import text_type

METADATA: Final = MetaData()

CONVERSATIONS: Final = Table(
    "held_conversations",
    METADATA,
    Column("tenant", text_type(), primary_key=True),
    Column("id", text_type(), primary_key=True),
    Column("holder", text_type()),
    Column("lease", text_type()),
    Column("used_at_us", BigInteger, nullable=False),
    Column("expires_at_us", BigInteger, nullable=False),
    Column("format", Integer, nullable=False),
    Column("num_turns", Integer, nullable=False),
    Column("num_words", BigInteger, nullable=False),
    Column("num_bytes", BigInteger, nullable=False),
    Column("relevance", Double),
    Column("run_id", text_type(), nullable=False),
    Column("settings", LargeBinary, nullable=False),
    Column("options", LargeBinary, nullable=False),
    Index("held_conversations_by_expiry", "expires_at_us"),
)
"""Conversations as they are after their last stored turn. A stream uses one that has a lease, as long as its
holder lives. ``format`` is that of settings, options and turns. The evaluator, which may share the database,
has a table ``conversations``."""

TURNS: Final = Table(
    "conversation_turns",
    METADATA,
    Column("tenant", text_type(), primary_key=True),
    Column("id", text_type(), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("payload", LargeBinary, nullable=False),
)
"""Their turns, from 1."""

TENANTS: Final = Table(
    "conversation_tenants",
    METADATA,
    Column("tenant", text_type(), primary_key=True),
    Column("conversations", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
)
"""What tenants hold: conversations, and the sum of their ``num_bytes``."""

HOLDERS: Final = Table(
    "conversation_holders",
    METADATA,
    Column("holder", text_type(), primary_key=True),
    Column("until_us", BigInteger, nullable=False),
)
"""Orchestrators, and until when each is sure to live: it sets the time again before it comes."""
