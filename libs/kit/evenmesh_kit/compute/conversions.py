"""Keep converted models on disk, so that the next start of a service need not convert them again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from platformdirs import user_cache_path

from evenmesh_kit.storage import durable_files

KEPT: Final = 8
"""Conversions that a folder keeps."""

_DIGESTS: Final = "digests.json"
_LEFT_BEHIND_S: Final = 3600.0
"""Age at which what a killed process was writing is removed. Seconds."""


class Conversions:
    """Folders of converted models, each under a key made of everything that it depends on.

    A conversion appears at once and whole, also where several processes write it at a time. It is used only
    while its files are those that were written, by their SHA-256; else it is made again. The ones used last
    are kept.

    Args:
        folder: where they are; made when the first is written.
        keep: most that are kept, [1, inf).
    """

    def __init__(self, folder: Path, *, keep: int = KEPT) -> None:
        self._folder = folder
        self._keep = keep

    @classmethod
    def of_user(cls, home: Path) -> Conversions:
        """Return those that all services of this user share; those below ``home`` where they cannot be
        written.
        """
        return cls(folder_of_user("openvino", home))

    def find(self, key: str, make: Callable[[Path], None]) -> Path:
        """Return the folder of a conversion; make it if it is missing or damaged.

        Args:
            key: name of the folder.
            make: writes the files of the conversion into an empty folder.

        Raises:
            OSError: it cannot be written.
            Exception: as ``make`` does.
        """
        target = self._folder / key
        if not _is_whole(target):
            self._write(target, make)
        with contextlib.suppress(OSError):  # on a disk that is read only, nothing is removed either
            os.utime(target)
            self._remove_unused(key)
        return target

    def _write(self, target: Path, make: Callable[[Path], None]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        beside = self._folder / f".{secrets.token_hex(8)}"
        beside.mkdir()
        try:
            make(beside)
            digests = {path.name: _digest(path) for path in beside.iterdir()}
            durable_files.write(beside / _DIGESTS, json.dumps(digests).encode())
            durable_files.sync_files(beside)
            self._put(beside, target)
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    def _put(self, beside: Path, target: Path) -> None:
        """Give a written conversion its name, unless another process was faster."""
        try:
            durable_files.move_folder(beside, target)
        except OSError:
            if _is_whole(target):
                return
            target.rename(self._folder / f".{secrets.token_hex(8)}")  # damaged: out of the way
            durable_files.move_folder(beside, target)

    def _remove_unused(self, used: str) -> None:
        ages = {path: path.stat().st_mtime for path in self._folder.iterdir() if path.is_dir()}
        kept = sorted((path for path in ages if not path.name.startswith(".")), key=lambda one: -ages[one])
        old = time.time() - _LEFT_BEHIND_S
        left_behind = [path for path in ages if path.name.startswith(".") and ages[path] < old]
        # A process that has mapped the files of a removed one keeps them until it ends.
        for path in [*[one for one in kept if one.name != used][self._keep - 1 :], *left_behind]:
            shutil.rmtree(path, ignore_errors=True)


def folder_of_user(name: str, home: Path) -> Path:
    """Return a folder that all services of this user share, ``evenmesh/<name>`` of its cache folder; the one
    below ``home`` where that cannot be written.
    """
    folder = user_cache_path("evenmesh") / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return home / name
    return folder if os.access(folder, os.W_OK) else home / name


def _is_whole(folder: Path) -> bool:
    """Return whether a conversion has the files that were written, and no other content."""
    try:
        digests = json.loads((folder / _DIGESTS).read_bytes())
        return bool(digests) and all(_digest(folder / name) == digest for name, digest in digests.items())
    except (OSError, ValueError, AttributeError, TypeError):
        return False


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
