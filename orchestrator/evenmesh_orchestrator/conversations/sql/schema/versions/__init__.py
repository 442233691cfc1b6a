"""Alembic's scripts: they say what tables were, whatever the code has become, so they import none of it."""
