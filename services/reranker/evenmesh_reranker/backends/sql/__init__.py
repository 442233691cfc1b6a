"""Feedback, agents, what was served and what trainers say, in SQL: SQLite in WAL mode, or PostgreSQL."""
