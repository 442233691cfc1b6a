"""Describe a backup: its parts, and the size and SHA-256 of every file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal

FILE: Final = "manifest.json"
"""Its name in a backup's folder."""

_FORMAT: Final = 1
_KINDS: Final = ("sqlite", "postgresql", "files")


class BackupError(Exception):
    """Raised when a backup cannot be made, read or restored; one line for each problem, with its remedy."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Size of a file in bytes, and the SHA-256 of its content (hexadecimal)."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Entry:
        """Read a file and return its size and SHA-256."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(path.stat().st_size, digest)


@dataclass(frozen=True, slots=True)
class Part:
    """One store in a backup.

    Attributes:
        name: name of the store, such as ``observations``.
        kind: ``sqlite``: a database file; ``postgresql``: what ``pg_dump`` wrote; ``files``: a
            folder or a file.
        path: the file or folder, relative to the backup; what no server holds has the same path in the home.
        files: its files, by path relative to the backup.
    """

    name: str
    kind: Literal["sqlite", "postgresql", "files"]
    path: str
    files: Mapping[str, Entry]

    @property
    def size(self) -> int:
        """Size of all files. Bytes."""
        return sum(entry.size for entry in self.files.values())

    @classmethod
    def of(cls, backup: Path, name: str, kind: Literal["sqlite", "postgresql", "files"], path: str) -> Part:
        """Read a part from a backup's folder."""
        there = backup / path
        paths = sorted(there.rglob("*")) if there.is_dir() else [there]
        return cls(
            name,
            kind,
            path,
            {one.relative_to(backup).as_posix(): Entry.of(one) for one in paths if one.is_file()},
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a backup.

    Attributes:
        created_at: start of the backup, UTC, ISO 8601.
        evenmesh: version that made it.
        parts: its parts, in the order in which they were read.
    """

    created_at: str
    evenmesh: str
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Size of all parts. Bytes."""
        return sum(part.size for part in self.parts)

    def write(self, backup: Path) -> None:
        """Write the manifest into a backup's folder."""
        content = {"format": _FORMAT, **asdict(self)}
        (backup / FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, backup: Path) -> Manifest:
        """Read the manifest in a backup's folder, and no other file.

        Raises:
            BackupError: it is missing or malformed, or names a path outside the backup.
        """
        try:
            read = json.loads((backup / FILE).read_bytes())
            if read["format"] != _FORMAT:
                raise BackupError(
                    f"{backup / FILE} is of format {read['format']}, and this version of evenmesh reads "
                    f"{_FORMAT}: restore with the version that made it, {read.get('evenmesh', 'a later one')}"
                )
            manifest = cls(
                str(read["created_at"]), str(read["evenmesh"]), tuple(_part(one) for one in read["parts"])
            )
        except FileNotFoundError:
            raise BackupError(f"{backup} is not a backup: it has no {FILE}") from None
        except OSError as error:
            raise BackupError(f"{backup / FILE} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise BackupError(f"{backup / FILE} cannot be understood: {type(error).__name__}") from None
        return manifest

    def problems(self, backup: Path) -> list[str]:
        """Read every file and return what differs from the manifest; empty if nothing does."""
        found = []
        for part in self.parts:
            for name, entry in part.files.items():
                path = backup / name
                try:
                    there = Entry.of(path)
                except OSError as error:
                    found.append(f"{path} cannot be read: {error.strerror}")
                    continue
                if there.size != entry.size:
                    found.append(f"{path} has {there.size} bytes and should have {entry.size}")
                elif there.sha256 != entry.sha256:
                    found.append(f"{path} is damaged: its SHA-256 is not the manifest's")
        return found


def _part(read: Mapping[str, Any]) -> Part:
    kind = read["kind"]
    if kind not in _KINDS:
        raise ValueError(kind)
    files = {str(name): Entry(int(one["size"]), str(one["sha256"])) for name, one in read["files"].items()}
    path = str(read["path"])
    _inside([path, *files])
    if not all(name == path or name.startswith(f"{path}/") for name in files):
        raise ValueError(path)
    return Part(str(read["name"]), kind, path, files)


def _inside(paths: Iterable[str]) -> None:
    # A backup may come from another machine: it must not name a path outside itself.
    for path in paths:
        pure = PurePosixPath(path)
        if not pure.parts or pure.is_absolute() or ".." in pure.parts or {"\\", "\0"} & set(path):
            raise ValueError(path)
