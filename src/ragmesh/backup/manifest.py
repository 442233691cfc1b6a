"""What a backup says of itself: its parts, and size and SHA-256 of every file."""

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
    """A backup that cannot be made, read or brought back; what is wrong and what to do, a line for each."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file: its size in bytes and the SHA-256 of its content, hexadecimal."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Entry:
        """What a file has. Reads all of it."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(path.stat().st_size, digest)


@dataclass(frozen=True, slots=True)
class Part:
    """One store.

    Attributes:
        name: which, such as ``observations``.
        kind: ``sqlite``: a database file; ``postgresql``: what ``pg_dump`` wrote; ``files``: a folder.
        path: the file or folder, from the backup's folder on; from the home on, what is in no server.
        files: its files, by their path from the backup's folder on.
    """

    name: str
    kind: Literal["sqlite", "postgresql", "files"]
    path: str
    files: Mapping[str, Entry]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files.values())

    @classmethod
    def of(cls, backup: Path, name: str, kind: Literal["sqlite", "postgresql", "files"], path: str) -> Part:
        """The part that lies in a backup's folder."""
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
    """All of a backup.

    Attributes:
        created_at: when it was begun, UTC, ISO 8601.
        ragmesh: version that made it.
        parts: its parts, in the order they were read.
    """

    created_at: str
    ragmesh: str
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(part.size for part in self.parts)

    def write(self, backup: Path) -> None:
        """Writes it into a backup's folder."""
        content = {"format": _FORMAT, **asdict(self)}
        (backup / FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, backup: Path) -> Manifest:
        """The manifest in a backup's folder; no file but it is read.

        Raises:
            BackupError: it is not there, cannot be understood, or names what lies elsewhere.
        """
        try:
            told = json.loads((backup / FILE).read_bytes())
            if told["format"] != _FORMAT:
                raise BackupError(
                    f"{backup / FILE} is of format {told['format']}, and this version of ragmesh reads "
                    f"{_FORMAT}: restore with the version that made it, {told.get('ragmesh', 'a later one')}"
                )
            manifest = cls(
                str(told["created_at"]), str(told["ragmesh"]), tuple(_part(one) for one in told["parts"])
            )
        except FileNotFoundError:
            raise BackupError(f"{backup} is no backup: it has no {FILE}") from None
        except OSError as error:
            raise BackupError(f"{backup / FILE} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise BackupError(f"{backup / FILE} cannot be understood: {type(error).__name__}") from None
        return manifest

    def problems(self, backup: Path) -> list[str]:
        """What in a backup's folder is not as it was written; empty if nothing. Reads all files."""
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


def _part(told: Mapping[str, Any]) -> Part:
    kind = told["kind"]
    if kind not in _KINDS:
        raise ValueError(kind)
    files = {str(name): Entry(int(one["size"]), str(one["sha256"])) for name, one in told["files"].items()}
    path = str(told["path"])
    _inside([path, *files])
    if not all(name == path or name.startswith(f"{path}/") for name in files):
        raise ValueError(path)
    return Part(str(told["name"]), kind, path, files)


def _inside(paths: Iterable[str]) -> None:
    # A backup comes from elsewhere: it must not name what is not its own.
    for path in paths:
        pure = PurePosixPath(path)
        if not pure.parts or pure.is_absolute() or ".." in pure.parts or {"\\", "\0"} & set(path):
            raise ValueError(path)
