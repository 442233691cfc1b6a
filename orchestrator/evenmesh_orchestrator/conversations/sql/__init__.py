"""Conversations in a SQLite file or a PostgreSQL database that several orchestrators share."""
