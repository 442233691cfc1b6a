"""Write files so that a crash at any point leaves either the old state or the new one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Write a small new file; its content is on disk on return, its name after :func:`sync_folder`.

    If that fails, as on a full disk, nothing is left, so that it can be tried again.
    """
    with path.open("xb", buffering=0) as file:
        try:
            left = memoryview(content)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):
                path.unlink()
            raise


def replace(path: Path, content: bytes) -> None:
    """Replace the content of a small file: readers, also after a crash, see the old content or the new."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    beside.unlink(missing_ok=True)
    write(beside, content)
    beside.replace(path)
    sync_folder(path.parent)


def move_folder(source: Path, target: Path) -> None:
    """Rename a folder within one file system, durably."""
    sync_folder(source)
    source.rename(target)
    sync_folder(target.parent)
    if source.parent != target.parent:
        sync_folder(source.parent)


def sync_files(folder: Path) -> None:
    """Make all files of a folder and their names durable."""
    for path in folder.iterdir():
        sync(path)
    sync_folder(folder)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    sync(path)


def sync(path: Path) -> None:
    """Make the content of a file durable, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
