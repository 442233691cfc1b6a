"""Back up stores in use: each as of one moment, without stopping anything."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from evenmesh_kit.storage import durable_files
from evenmesh_mesh.backup.manifest import BackupError, Manifest, Part
from evenmesh_mesh.backup.stores import COLLECTIONS, MODELS, OUTBOX, SOURCES, Database, Stores

_ATTEMPTS: Final = 5
_LOCK_S: Final = 30.0


def take(stores: Stores, target: Path, *, on_part: Callable[[Part], None] = lambda _: None) -> Manifest:
    """Copy everything into a new folder, which appears only when it is complete.

    The outbox is copied before the observations: an observation in transit is then in one or in both, and the
    evaluator stores every id once. Databases are copied before the models that they name.

    Args:
        stores: what to copy.
        target: the folder; it must not exist.
        on_part: called with each finished part.

    Raises:
        BackupError: it exists, or something cannot be read or written; nothing is left behind.
    """
    if target.exists():
        raise BackupError(f"{target} exists; name a new folder")
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    created_at = datetime.now(UTC).isoformat(timespec="seconds")
    parts: list[Part] = []

    def done(part: Part) -> None:
        parts.append(part)
        on_part(part)

    try:
        beside.mkdir(parents=True)
        beside.chmod(0o700)  # it holds what every tenant has
        outbox = Database("outbox", OUTBOX, stores.home / OUTBOX, {})
        for database in (outbox, *stores.databases):
            if database.file is None:
                _dump(database, beside)
                done(Part.of(beside, database.name, "postgresql", database.path))
            elif database.file.exists():
                copy_sqlite(database.file, beside / database.path)
                done(Part.of(beside, database.name, "sqlite", database.path))
        for name, path, copy in (
            ("models", MODELS, _copy_models),
            ("collections", COLLECTIONS, _copy_collections),
            ("sources", SOURCES, _copy_file),
        ):
            if (stores.home / path).exists():
                copy(stores.home / path, beside / path)
                done(Part.of(beside, name, "files", path))
        if not parts:
            raise BackupError(f"there is nothing to back up under {stores.home}: name the home with --home")
        manifest = Manifest(created_at, version("evenmesh"), tuple(parts))
        manifest.write(beside)
        _sync(beside)
        beside.rename(target)
    except OSError as error:
        raise cannot_write(error, target) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return manifest


def cannot_write(error: OSError, target: Path) -> BackupError:
    """Return what to say where a copy failed: of two files ``shutil`` names the one written second."""
    return BackupError(
        f"cannot write {error.filename2 or error.filename or target}: {error.strerror or error}"
    )


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy a database as of one moment while others write to it, and check the copy.

    Raises:
        BackupError: the database cannot be read, or is damaged.
        OSError: the copy cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with (
            closing(
                sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=_LOCK_S)
            ) as old,
            closing(sqlite3.connect(target)) as new,
        ):
            old.backup(new)
            # Keep one file, without a write-ahead log beside it.
            new.execute("PRAGMA journal_mode=DELETE")
            (verdict,) = new.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.Error as error:
        # Only the copy is written: a disk that is full is the backup's.
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target)) from None
        raise BackupError(f"{source} cannot be copied: {error}") from None
    if verdict != "ok":
        raise BackupError(f"{source} is damaged: {verdict}")


def _dump(database: Database, backup: Path) -> None:
    path = backup / database.path
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["--format=custom", "--no-owner", "--no-privileges", f"--file={path}"]
    run_postgresql("pg_dump", command, database)


def run_postgresql(program: str, arguments: list[str], database: Database) -> str:
    """Run a program of PostgreSQL against a database, and return its output.

    Raises:
        BackupError: the program is not installed, or fails.
    """
    found = shutil.which(program)
    if found is None:
        raise BackupError(
            f"the {database.name} are in PostgreSQL, and {program} is not on the path: install it"
        )
    ended = subprocess.run(  # noqa: S603 - a program that was found, with arguments of ours
        [found, *arguments],
        env={**os.environ, **database.server},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        why = (ended.stderr.strip().splitlines() or ["no word"])[-1]
        raise BackupError(f"{program} of the {database.name} failed: {why}")
    return ended.stdout


def _copy_models(source: Path, target: Path) -> None:
    """Copy first the pointers to versions, then the versions, which never change."""
    for _ in range(_ATTEMPTS):
        with _whole(target) as again:
            _copy_folder(source / "serving", target / "serving")
            versions = source / "versions"
            for folder in sorted(versions.iterdir()) if versions.is_dir() else ():
                try:
                    _copy_folder(folder, target / "versions" / folder.name)
                except FileNotFoundError:
                    # It was removed meanwhile because nothing needs it.
                    shutil.rmtree(target / "versions" / folder.name, ignore_errors=True)
            needed = {_serving(path) for path in (target / "serving").glob("*.json")} - {None}
            if missing := [one for one in needed if one and not (target / "versions" / one).is_dir()]:
                raise FileNotFoundError(missing[0])
        if not again:
            return
    raise BackupError(f"the models in {source} changed faster than they were copied: try again")


def _serving(pointer: Path) -> str | None:
    try:
        serving = json.loads(pointer.read_bytes())["serving"]
    except (ValueError, KeyError, TypeError):
        return None  # the service that reads it reports what is wrong
    return None if serving is None else str(serving)


def _copy_collections(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for pointer in sorted(source.glob("*/*/CURRENT")):
        collection = pointer.parent
        if collection.name.startswith("."):
            continue
        there = target / collection.relative_to(source)
        for _ in range(_ATTEMPTS):
            with _whole(there) as again:
                _copy_collection(collection, there)
            if not again or not pointer.exists():  # the collection may be gone, too
                break
        else:
            raise BackupError(
                f"the collection {collection.name} changed faster than it was copied: try again"
            )


def _copy_collection(source: Path, target: Path) -> None:
    """Copy the current version: its files never change, and stay until two newer ones exist."""
    current = (source / "CURRENT").read_text(encoding="ascii").strip()
    manifest = source / "versions" / f"{current}.json"
    try:
        record = json.loads(manifest.read_bytes())
        segments = [str(one["name"]) for one in record["segments"]]
        dead = [str(one["dead"]["file"]) for one in record["segments"] if one["dead"]]
    except (ValueError, KeyError, TypeError):
        raise BackupError(f"{manifest} cannot be understood: the collection is damaged") from None
    for name in (manifest.name, *dead):
        _copy_file(source / "versions" / name, target / "versions" / name)
    (target / "segments").mkdir(parents=True, exist_ok=True)
    for name in segments:
        _copy_folder(source / "segments" / name, target / "segments" / name)
    (target / "CURRENT").write_text(current, encoding="ascii")


@contextmanager
def _whole(target: Path) -> Iterator[list[str]]:
    """Remove the target if a file vanished during the copy, and record that in the yielded flag."""
    again: list[str] = []
    try:
        yield again
    except FileNotFoundError as error:
        again.append(str(error.filename or error))
        shutil.rmtree(target, ignore_errors=True)


def _copy_folder(source: Path, target: Path) -> None:
    """Copy a folder without the names that begin with a dot: these are still being written."""
    if not source.is_dir() and target.name == "serving":
        return
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            _copy_folder(path, target / path.name)
        else:
            _copy_file(path, target / path.name)


def _copy_file(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _sync(folder: Path) -> None:
    """Flush a folder and everything in it to disk."""
    for path in [*folder.rglob("*"), folder]:
        durable_files.sync(path)
