"""What a version folder holds, and the check that it still does."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

FILE_NAME: Final = "manifest.json"
_VERSION: Final = re.compile(r"(\d{6,})-([0-9a-f]{12})")


class CorruptVersion(Exception):  # noqa: N818 - a finding
    """A version folder is not what its manifest says; the message names the folder and the file."""


class FileEntry(BaseModel):
    """One file of a version."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class EncoderEntry(BaseModel):
    """The encoder of a version's vectors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    fingerprint: str
    dimension: int = Field(ge=1)


class Manifest(BaseModel):
    """Everything about a version except its name, which ends with the hash of this manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: Literal[1] = 1
    collection: str
    generation: int = Field(ge=1)
    description: str
    created_at: datetime
    num_passages: int = Field(ge=0)
    analyzer: str
    encoder: EncoderEntry | None
    files: dict[str, FileEntry]

    def serialized(self) -> bytes:
        """The manifest as its file has it."""
        return self.model_dump_json(indent=1).encode()

    @property
    def size_bytes(self) -> int:
        """Size of the version on disk. Bytes."""
        return sum(entry.bytes for entry in self.files.values()) + len(self.serialized())


@dataclass(frozen=True, slots=True, order=True)
class VersionName:
    """Name of a version folder: a number that grows, and what it was made from."""

    generation: int
    digest: str
    """First 12 hexadecimal digits of the SHA-256 of the manifest."""

    def __str__(self) -> str:
        return f"{self.generation:06d}-{self.digest}"

    @classmethod
    def of(cls, manifest: Manifest) -> VersionName:
        """The name that a manifest's folder must have."""
        return cls(manifest.generation, hashlib.sha256(manifest.serialized()).hexdigest()[:12])

    @classmethod
    def parse(cls, name: str) -> VersionName | None:
        """Reads a folder's name; None if it is no version's."""
        match = _VERSION.fullmatch(name)
        return cls(int(match[1]), match[2]) if match else None


def entry_of(path: Path) -> FileEntry:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileEntry(bytes=path.stat().st_size, sha256=digest)


def verified(folder: Path) -> Manifest:
    """The manifest of a version folder, after checking every byte of it.

    Raises:
        CorruptVersion: the manifest or a file is missing, unreadable or not as it was written.
    """
    try:
        content = (folder / FILE_NAME).read_bytes()
        name = VersionName.parse(folder.name)
        if name is None or hashlib.sha256(content).hexdigest()[:12] != name.digest:
            raise CorruptVersion(f"{folder / FILE_NAME} is not the manifest that was written")
        try:
            manifest = Manifest.model_validate_json(content)
        except ValidationError:
            raise CorruptVersion(
                f"{folder / FILE_NAME} is of a format that this version of ragmesh does not know"
            ) from None
        for file_name, expected in manifest.files.items():
            path = folder / file_name
            if path.stat().st_size != expected.bytes:
                raise CorruptVersion(f"{path} has {path.stat().st_size} bytes, not {expected.bytes}")
            if entry_of(path) != expected:
                raise CorruptVersion(f"{path} does not have the SHA-256 of its manifest")
    except OSError as error:
        raise CorruptVersion(f"{error.filename or folder} cannot be read: {error.strerror}") from None
    return manifest
