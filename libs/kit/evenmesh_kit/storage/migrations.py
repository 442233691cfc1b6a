"""Create the schemas of SQL databases, and migrate older ones with Alembic's scripts, when a store opens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import ascii_lowercase

from sqlalchemy import Column, Connection, MetaData, String, Table, insert, inspect, select, update

from evenmesh.wire.errors import Unavailable


@dataclass(frozen=True, slots=True)
class Schema:
    """A database's schema and the scripts that lead to it.

    A new database gets the tables of today in one step; only an older one needs the scripts, and only then is
    Alembic imported, which takes a quarter of a second. A test holds both ways together.

    A revision is a number, and a letter behind it where the script only adds what code of the number can do
    without, such as an index: versions of evenmesh that know any revision of one number write to the database
    side by side, so that a rollout stops nobody and can be undone.

    A script gets an ``op`` (:class:`alembic.operations.Operations`) instead of importing Alembic's global
    one, so that one process can open two databases at a time.

    Attributes:
        tables: of today.
        scripts: folder whose ``versions`` has the scripts, one line of revisions. Their names begin with
            ``v``, the revision, and ``_``, and sort in their order.
        version_table: table with the revision; one for each store, as stores may share a database.
        unversioned: returns the revision of a database older than that table; None if it has none of our
        tables.
        what: content of the database, such as ``observations``; for messages.
        fill: writes the rows that a new database begins with.
    """

    tables: MetaData
    scripts: Path
    version_table: str
    unversioned: Callable[[Connection], str | None]
    what: str
    fill: Callable[[Connection], None] = lambda _: None

    def upgrade(self, connection: Connection) -> str:
        """Bring a database up to date, all or nothing, in the connection's transaction; return its revision.

        One that a later version only added to stays as it is.

        The caller's transaction must be the only one that writes; others wait for it and then find nothing to
        do.

        Raises:
            Unavailable: the database is of a later version of evenmesh (reason ``STORE_VERSION``).
            sqlalchemy.exc.DBAPIError: it cannot be written.
        """
        known = self.revisions()
        newest = known[-1]
        versioned = inspect(connection).has_table(self.version_table)
        there = self.revision(connection) if versioned else None
        later = there is not None and there not in known
        if later and not compatible(there, newest):
            raise Unavailable(
                "STORE_VERSION",
                f"the database of {self.what} has schema {there}, and this version of evenmesh knows up "
                f"to {newest}: run the later version that wrote it, or restore a backup of before it",
            )
        if there is not None and (later or there == newest):
            # Write once, to find out now whether the database can be written.
            connection.execute(update(_versions(self.version_table)).values(version_num=there))
            return there
        older = None if there else self.unversioned(connection)
        if there is None and older is None:
            self._create(connection, newest)
        else:
            # Imported for a database that needs it: it is slow.
            from evenmesh_kit.storage.scripts import run

            run(connection, self.scripts, self.version_table, stamp=older)
        return newest

    def is_older(self, connection: Connection) -> bool:
        """Return whether an earlier version of evenmesh wrote the database, so that scripts are to be run.

        Raises:
            sqlalchemy.exc.DBAPIError: it cannot be read.
        """
        if inspect(connection).has_table(self.version_table):
            there = self.revision(connection)
            if there is not None:
                return there in self.revisions()[:-1]
        return self.unversioned(connection) is not None

    def revisions(self) -> list[str]:
        """Return all revisions, the oldest first."""
        names = sorted(path.name for path in (self.scripts / "versions").glob("v*_*.py"))
        return [name[1 : name.index("_")] for name in names]

    def revision(self, connection: Connection) -> str | None:
        """Return the revision that a database has now; None if it has none.

        Raises:
            sqlalchemy.exc.DBAPIError: it cannot be read, or nobody ever opened it.
        """
        found: str | None = connection.scalar(select(_versions(self.version_table).c.version_num))
        return found

    def _create(self, connection: Connection, newest: str) -> None:
        self.tables.create_all(connection, checkfirst=False)
        self.fill(connection)
        versions = _versions(self.version_table)
        # A script that failed may have left it, without a row.
        versions.create(connection, checkfirst=True)
        connection.execute(insert(versions).values(version_num=newest))


def compatible(found: str | None, known: str | None) -> bool:
    """Return whether code that knows one revision may write to a database that has another."""
    return found is not None and known is not None and _number(found) == _number(known)


def _number(revision: str) -> str:
    return revision.rstrip(ascii_lowercase)


@cache
def _versions(name: str) -> Table:
    """Return the table of the revision, as Alembic makes it.

    Always the same one: a statement about another is compiled anew, in every transaction that writes.
    """
    column = Column("version_num", String(32), primary_key=True)
    table = Table(name, MetaData(), column)
    table.primary_key.name = f"{name}_pkc"
    return table
