"""Run Alembic's scripts on a database that an earlier version of evenmesh wrote."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext, MigrationStep
from alembic.script import ScriptDirectory
from sqlalchemy import Connection


def run(connection: Connection, scripts: Path, version_table: str, *, stamp: str | None = None) -> None:
    """Run the scripts that a database has not had, in the connection's transaction.

    Args:
        connection: to the database.
        scripts: folder whose ``versions`` has the scripts.
        version_table: table with the revision.
        stamp: revision of a database without that table; None: it has the table, or is empty.

    Raises:
        sqlalchemy.exc.DBAPIError: it cannot be written.
    """
    script = ScriptDirectory(str(scripts))

    def steps(found: tuple[str, ...], _: MigrationContext) -> Iterable[MigrationStep]:
        missing = script.iterate_revisions("head", found or "base", implicit_base=True)
        return [
            MigrationStep.upgrade_from_script(script.revision_map, one) for one in reversed(list(missing))
        ]

    context = MigrationContext.configure(connection, opts={"version_table": version_table, "fn": steps})
    if stamp is not None:
        context.stamp(script, stamp)
    context.run_migrations(op=Operations(context))
