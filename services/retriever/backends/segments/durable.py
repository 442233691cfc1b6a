"""Writing so that a crash at any point leaves either the old state or the new one."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Writes a small new file, on disk when it returns; its name is durable after :func:`sync_folder`."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, content: bytes) -> None:
    """Gives a small file new content: readers see the old or the new, a crash leaves the old or the new."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    write(beside, content)
    beside.replace(path)
    sync_folder(path.parent)


def move_folder(source: Path, target: Path) -> None:
    """Renames a folder on one file system, durably."""
    sync_folder(source)
    source.rename(target)
    sync_folder(target.parent)
    if source.parent != target.parent:
        sync_folder(source.parent)


def sync_folder(path: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
