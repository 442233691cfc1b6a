"""Where versions lie: the folder of one collection, its pointer, and what a crash may have left in it.

::

    <collections>/<name>/CURRENT                    name of the version served
    <collections>/<name>/<generation>-<hash>/       a version: manifest.json and its files
    <collections>/<name>/.build-…/                  a version being written
    <collections>/.new-…/  <collections>/.old-…/    a collection being created or removed
"""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from services.retriever.backends.local import durable
from services.retriever.backends.local.manifest import CorruptVersion, Manifest, VersionName, verified

_POINTER: Final = "CURRENT"
_BUILD, _NEW, _OLD = ".build-", ".new-", ".old-"
_log = logging.getLogger("ragmesh.retriever.store")


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A folder beside the versions of a collection; what is still there at the end is removed."""
    path = folder / f"{_BUILD}{secrets.token_hex(6)}"
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def unborn(root: Path) -> Iterator[Path]:
    """A folder beside the collections for one that is not there yet; removed at the end if still there."""
    path = root / f"{_NEW}{secrets.token_hex(6)}"
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def publish(folder: Path, built: Path, manifest: Manifest) -> Path:
    """Makes a version that is completely written the current one of a collection; returns its folder.

    The pointer's rename is the moment: a crash before it leaves the old version current, after it the new.
    """
    name = VersionName.of(manifest)
    version = folder / str(name)
    try:
        durable.move_folder(built, version)
        durable.replace(folder / _POINTER, str(name))
    except OSError:
        if current(folder) != name:
            shutil.rmtree(version, ignore_errors=True)
        raise
    return version


def remove(root: Path, name: str) -> None:
    """Removes a collection, at once as far as anyone can see."""
    grave = root / f"{_OLD}{secrets.token_hex(6)}"
    durable.move_folder(root / name, grave)
    shutil.rmtree(grave, ignore_errors=True)


def current(folder: Path) -> VersionName | None:
    """The version that the pointer names; None if the pointer is missing or damaged."""
    try:
        return VersionName.parse((folder / _POINTER).read_text())
    except (OSError, UnicodeDecodeError):
        return None


def versions(folder: Path) -> list[VersionName]:
    """All versions that lie in a collection's folder, the newest first."""
    names = (VersionName.parse(path.name) for path in folder.iterdir())
    return sorted((name for name in names if name is not None), reverse=True)


def discard(folder: Path, name: VersionName) -> None:
    """Removes a version."""
    shutil.rmtree(folder / str(name), ignore_errors=True)


def collections(root: Path) -> list[str]:
    """Names of the collections, after removing what creations and removals cut short have left."""
    names = []
    for path in sorted(root.iterdir()):
        if path.name.startswith((_NEW, _OLD)):
            _log.warning("removing %s, left by a creation or removal that was cut short", path.name)
            _remove(path)
        elif path.is_dir() and not path.name.startswith("."):
            names.append(path.name)
    return names


def newest_sound(folder: Path) -> tuple[VersionName, Manifest]:
    """The version to serve after a start: the one the pointer names, or, if that is corrupt, the one before.

    Removes what was never made current. Everything is logged by name.

    Raises:
        CorruptVersion: no version is sound; the message is about the one that should be served.
    """
    for path in folder.glob(".*"):
        _log.warning(
            "removing %s of collection %s, left by a write that was cut short", path.name, folder.name
        )
        _remove(path)
    pointed = current(folder)
    candidates = versions(folder)
    first: CorruptVersion | None = None
    if pointed is None:
        first = CorruptVersion(f"{folder / _POINTER} is missing or damaged")
        _log.error("collection %s: %s", folder.name, first)
    else:
        for name in [name for name in candidates if name.generation > pointed.generation]:
            _log.warning("removing version %s of collection %s: it was never current", name, folder.name)
            discard(folder, name)
        candidates = [pointed] + [name for name in candidates if name.generation < pointed.generation]
    for name in candidates:
        try:
            manifest = verified(folder / str(name))
            if manifest.collection != folder.name:
                raise CorruptVersion(f"{folder / str(name)} is of collection {manifest.collection!r}")
        except CorruptVersion as error:
            _log.error("collection %s: version %s is corrupt: %s", folder.name, name, error)
            first = first or error
            continue
        if first is not None:
            _log.error("collection %s: version %s, an earlier one, is served", folder.name, name)
        return name, manifest
    raise first or CorruptVersion(f"{folder} holds no version")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
