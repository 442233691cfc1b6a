"""Restore backups: check everything first, replace nothing unless asked, then switch at once."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from evenmesh_kit.storage import durable_files
from evenmesh_mesh.backup.manifest import BackupError, Manifest, Part
from evenmesh_mesh.backup.stores import COLLECTIONS, Database, Stores
from evenmesh_mesh.backup.taking import cannot_write, run_postgresql
from evenmesh_mesh.lock import LockHeldError, MeshLock

_STAGED: Final = ".restoring-"
_SWITCHING: Final = "switching"
"""File in the folder of staged parts while they take their places; it says where what they replace is."""
_BESIDE_SQLITE: Final = ("-wal", "-shm", "-journal")
_NO_COLLECTIONS: Final = (".lock", ".writers")
"""What a retriever leaves in a folder without collections."""
_DROP: Final = """DO $$ DECLARE one text; BEGIN
    FOR one IN SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = current_schema() LOOP
        EXECUTE 'DROP TABLE IF EXISTS ' || one || ' CASCADE';
    END LOOP;
END $$"""
"""``pg_restore --clean`` alone would leave tables of a later schema than the backup's."""
_COUNT: Final = "SELECT count(*) FROM information_schema.tables WHERE table_schema = current_schema()"


def verified(backup: Path) -> Manifest:
    """Compare every file of a backup with its manifest, and return the manifest.

    Raises:
        BackupError: a file is missing or differs.
    """
    manifest = Manifest.read(backup)
    if problems := manifest.problems(backup):
        raise BackupError("\n".join(problems))
    return manifest


def restore(
    backup: Path, stores: Stores, *, overwrite: bool = False, on_part: Callable[[Part], None] = lambda _: None
) -> tuple[Manifest, Path | None]:
    """Restore a backup into a home, and into the servers of its databases.

    Everything is checked before anything changes. Existing data moves aside into a folder of the home, and
    files are copied completely before they take its place. Each PostgreSQL database is replaced in one
    transaction.

    Args:
        backup: the backup's folder.
        stores: where the data goes.
        overwrite: whether existing data may be replaced.
        on_part: called with each finished part.

    Returns:
        The manifest, and the folder with the data that was replaced; None if there was none.

    Raises:
        BackupError: the backup is damaged, a mesh or a service uses that home, or data exists there.
    """
    manifest = verified(backup)
    databases = {database.name: database for database in stores.databases}
    try:
        with ExitStack() as stack:
            stack.enter_context(MeshLock(stores.home))
            stack.enter_context(_no_retriever(stores.home / COLLECTIONS))
            _check_kinds(manifest, databases)
            if not overwrite and (taken := _taken(manifest, stores, databases)):
                raise BackupError("\n".join([*(f"{one} exists" for one in taken), "--overwrite replaces it"]))
            for part in manifest.parts:
                if part.kind == "sqlite":
                    _check_unused(_target(part, stores, databases))
            done = manifest, _bring(manifest, backup, stores, databases, on_part)
            for left in stores.home.glob(f"{_STAGED}*"):  # of restores that were killed
                shutil.rmtree(left, ignore_errors=True)
            return done
    except LockHeldError:
        raise BackupError(f"a mesh runs under {stores.home}: stop it with `evenmesh down`") from None
    except OSError as error:
        raise cannot_write(error, stores.home) from None


def interrupted(home: Path) -> str | None:
    """Return what to do about a restore into a home that was killed between two parts; None if none was."""
    for file in home.glob(f"{_STAGED}*/{_SWITCHING}"):
        return (
            f"a restore into {home} was interrupted and brought back only a part: run it again with "
            f"--overwrite; what was there before is in {file.read_text()}"
        )
    return None


def _bring(
    manifest: Manifest,
    backup: Path,
    stores: Stores,
    databases: dict[str, Database],
    on_part: Callable[[Part], None],
) -> Path | None:
    beside = stores.home / f"{_STAGED}{secrets.token_hex(4)}"
    aside = stores.home / f"replaced-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    brought: list[str] = []
    staged = {part.name: _staged(part, stores, databases, beside) for part in manifest.parts}
    beside.mkdir(mode=0o700)
    try:
        for part in manifest.parts:
            if part.kind == "files" and (backup / part.path).is_dir():
                (beside / part.path).mkdir(parents=True)
                for folder in (path for path in (backup / part.path).rglob("*") if path.is_dir()):
                    (beside / folder.relative_to(backup)).mkdir(parents=True, exist_ok=True)
            if part.kind != "postgresql":
                for name in part.files:
                    target = staged[part.name] if name == part.path else beside / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(backup / name, target)
                    durable_files.sync(target)
        durable_files.write(beside / _SWITCHING, str(aside).encode())
        durable_files.sync_folder(beside)
        # First what may fail for reasons of others, before anything here is moved.
        for part in sorted(manifest.parts, key=lambda part: part.kind != "postgresql"):
            if part.kind == "postgresql":
                _replace(databases[part.name], backup / part.path, beside)
            else:
                target = _target(part, stores, databases)
                _set_aside(target, aside / part.path)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(staged[part.name], target)
                durable_files.sync(target.parent)
            brought.append(part.name)
            on_part(part)
    except (BackupError, OSError, KeyboardInterrupt) as error:
        if not brought and not aside.exists():
            raise
        why: object = cannot_write(error, stores.home) if isinstance(error, OSError) else error
        if isinstance(error, KeyboardInterrupt):
            why = "interrupted"
        what = f"only the {', '.join(brought)} were brought back" if brought else "nothing was brought back"
        before = f"; what was there before is in {aside}" if aside.exists() else ""
        raise BackupError(f"{why}\n{what}{before}") from None
    finally:
        for path in staged.values():
            if path.is_file():
                path.unlink()
        shutil.rmtree(beside, ignore_errors=True)
    return aside if aside.exists() else None


def _replace(database: Database, dump: Path, folder: Path) -> None:
    """Replace a PostgreSQL database by a dump, in one transaction."""
    script = folder / f"{database.name}.sql"
    plain = ["--clean", "--if-exists", "--no-owner", "--no-privileges", f"--file={script}", str(dump)]
    run_postgresql("pg_restore", plain, database)
    once = ["--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1"]
    run_postgresql("psql", [*once, f"--command={_DROP}", f"--file={script}"], database)
    script.unlink(missing_ok=True)


def _target(part: Part, stores: Stores, databases: dict[str, Database]) -> Path:
    database = databases.get(part.name)
    return stores.home / part.path if database is None or database.file is None else database.file


def _staged(part: Part, stores: Stores, databases: dict[str, Database], beside: Path) -> Path:
    """Return where a part waits, on the disk of its target, so that it takes its place by a rename."""
    target = _target(part, stores, databases)
    if part.kind != "sqlite" or target.is_relative_to(stores.home):
        return beside / part.path
    return target.with_name(f"{beside.name}-{target.name}")


def _check_kinds(manifest: Manifest, databases: dict[str, Database]) -> None:
    for part in manifest.parts:
        database = databases.get(part.name)
        if database is not None and (part.kind == "postgresql") is not (database.file is None):
            here = "PostgreSQL" if database.file is None else "SQLite"
            raise BackupError(
                f"the {part.name} of the backup are of {part.kind} and here they are in {here}: set "
                "EVENMESH_…_DATABASE_URL as it was"
            )


def _taken(manifest: Manifest, stores: Stores, databases: dict[str, Database]) -> list[str]:
    found = []
    for part in manifest.parts:
        if part.kind == "postgresql":
            database = databases[part.name]
            arguments = ["--no-psqlrc", "--tuples-only", "--no-align", "--command", _COUNT]
            if int(run_postgresql("psql", arguments, database)):
                found.append(f"the PostgreSQL database of the {part.name}")
            continue
        target = _target(part, stores, databases)
        if target.is_dir() and not any(path.name not in _NO_COLLECTIONS for path in target.iterdir()):
            continue
        if target.exists():
            found.append(str(target))
    return found


def _set_aside(target: Path, aside: Path) -> None:
    if target.is_dir() and not any(path.name not in _NO_COLLECTIONS for path in target.iterdir()):
        shutil.rmtree(target)
        return
    beside = [target.with_name(f"{target.name}{ending}") for ending in _BESIDE_SQLITE]
    for path in (target, *beside):
        if path.exists():
            aside.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, aside.with_name(path.name))


def _check_unused(file: Path) -> None:
    """Check that no service has an SQLite database open: it would go on writing to the one set aside.

    Raises:
        BackupError: another connection keeps its write-ahead log.
    """
    if not file.exists():
        return
    try:
        with closing(sqlite3.connect(file, timeout=0)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise BackupError(f"a service has {file} open: stop it first") from None
    except sqlite3.DatabaseError:
        return  # a damaged one is what a backup is for


@contextmanager
def _no_retriever(collections: Path) -> Iterator[None]:
    """Lock the folder of collections against every retriever.

    Raises:
        BackupError: a retriever holds the lock.
    """
    if not collections.is_dir():
        yield
        return
    descriptor = os.open(collections / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupError(f"a retriever has {collections}: stop it first") from None
        yield
    finally:
        os.close(descriptor)
