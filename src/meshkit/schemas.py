"""Schemas of SQL databases: brought to what the code knows by Alembic's scripts when a store is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext, MigrationStep
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, column, table, update

from meshkit.errors import Unavailable


@dataclass(frozen=True, slots=True)
class Schema:
    """A database's schema and the scripts that lead to it.

    A script is given an ``op`` (:class:`alembic.operations.Operations`) instead of importing Alembic's global
    one, so that two databases can be opened at a time in one process.

    Attributes:
        scripts: folder whose ``versions`` has the scripts, one line of revisions that sort by name.
        version_table: table that has the revision; of its own for each store, as stores may share a database.
        unversioned: revision of a database that was made before there was that table; None if it has nothing
            of ours.
        what: what the database is of, such as ``observations``; for messages.
    """

    scripts: Path
    version_table: str
    unversioned: Callable[[Connection], str | None]
    what: str

    def upgrade(self, connection: Connection) -> None:
        """Brings a database up to date; all of it in the connection's transaction, or nothing.

        The caller's transaction must be the only one that writes: others wait for it and then find nothing to
        do.

        Raises:
            Unavailable: the database is of a later version of ragmesh (reason ``STORE_VERSION``).
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
                f"the database of {self.what} has schema {later[0]}, and this version of ragmesh knows up to "
                f"{newest}: run the later version that wrote it, or restore a backup of before it",
            )
        if not there and (older := self.unversioned(connection)) is not None:
            context.stamp(script, older)
            there = (older,)
        if there != (newest,):
            context.run_migrations(op=Operations(context))
        else:
            # The one write that shows at once whether the database can be written at all.
            version = table(self.version_table, column("version_num"))
            connection.execute(update(version).values(version_num=newest))
