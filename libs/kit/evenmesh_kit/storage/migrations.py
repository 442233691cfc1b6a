"""Migrate the schemas of SQL databases with Alembic's scripts when a store opens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext, MigrationStep
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, column, select, table, update

from evenmesh.wire.errors import Unavailable


@dataclass(frozen=True, slots=True)
class Schema:
    """A database's schema and the scripts that lead to it.

    A script gets an ``op`` (:class:`alembic.operations.Operations`) instead of importing Alembic's global
    one, so that one process can open two databases at a time.

    Attributes:
        scripts: folder whose ``versions`` has the scripts, one line of revisions that sort by name.
        version_table: table with the revision; one for each store, as stores may share a database.
        unversioned: returns the revision of a database older than that table; None if it has none of our
        tables.
        what: content of the database, such as ``observations``; for messages.
    """

    scripts: Path
    version_table: str
    unversioned: Callable[[Connection], str | None]
    what: str

    def upgrade(self, connection: Connection) -> str | None:
        """Bring a database up to date, all or nothing, in the connection's transaction; return its revision.

        The caller's transaction must be the only one that writes; others wait for it and then find nothing to
        do.

        Raises:
            Unavailable: the database is of a later version of evenmesh (reason ``STORE_VERSION``).
            sqlalchemy.exc.DBAPIError: it cannot be written.
        """
        script = ScriptDirectory(str(self.scripts))

        def steps(found: tuple[str, ...], _: MigrationContext) -> Iterable[MigrationStep]:
            missing = script.iterate_revisions("head", found or "base", implicit_base=True)
            return [
                MigrationStep.upgrade_from_script(script.revision_map, one) for one in reversed(list(missing))
            ]

        context = MigrationContext.configure(
            connection, opts={"version_table": self.version_table, "fn": steps}
        )
        there = context.get_current_heads()
        known = {one.revision for one in script.walk_revisions()}
        newest = script.get_current_head()
        if later := sorted(set(there) - known):
            raise Unavailable(
                "STORE_VERSION",
                f"the database of {self.what} has schema {later[0]}, and this version of evenmesh knows up "
                f"to {newest}: run the later version that wrote it, or restore a backup of before it",
            )
        if not there and (older := self.unversioned(connection)) is not None:
            context.stamp(script, older)
            there = (older,)
        if there != (newest,):
            context.run_migrations(op=Operations(context))
        else:
            # Write once, to find out now whether the database can be written.
            version = table(self.version_table, column("version_num"))
            connection.execute(update(version).values(version_num=newest))
        return newest

    def revision(self, connection: Connection) -> str | None:
        """Return the revision that a database has now; None if it has none.

        Raises:
            sqlalchemy.exc.DBAPIError: it cannot be read, or nobody ever opened it.
        """
        version = table(self.version_table, column("version_num"))
        found: str | None = connection.scalar(select(version.c.version_num))
        return found
