"""Describe segments and versions, and check their files.

A version's name ends with the hash of its manifest, which names segments; a segment's name ends with the hash
of its own, which has the hash of its arrays. So whoever trusts the pointer can check every byte.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evenmesh_retriever.backends.segments.files.arrays import ArrayFile

MANIFEST: Final = "manifest.json"
_NAME: Final = re.compile(r"(\d{6,})-([0-9a-f]{12})")


class Corrupt(Exception):  # noqa: N818 - a finding
    """Something on disk is not what was written; the message names the file, from the root on."""


@dataclass(frozen=True, slots=True, order=True)
class Name:
    """Name of a version, segment or dense index: a number that grows, and what it was made of."""

    generation: int
    digest: str
    """First 12 hexadecimal digits of the SHA-256 of the manifest."""

    def __str__(self) -> str:
        return f"{self.generation:06d}-{self.digest}"

    @classmethod
    def of(cls, generation: int, manifest: bytes) -> Name:
        """Return the name of what a manifest describes."""
        return cls(generation, hashlib.sha256(manifest).hexdigest()[:12])

    @classmethod
    def parse(cls, name: str) -> Name | None:
        """Read a name; None if it is none."""
        match = _NAME.fullmatch(name)
        return cls(int(match[1]), match[2]) if match else None


class _Manifest(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def serialized(self) -> bytes:
        """Return the manifest as its file has it."""
        return self.model_dump_json(indent=1).encode()


class FileEntry(BaseModel):
    """One file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class SegmentManifest(_Manifest):
    """An immutable set of passages, indexed."""

    format_version: Literal[1] = 1
    num_passages: int = Field(ge=1)
    num_tokens: int = Field(ge=0)
    passage_bytes: int = Field(ge=0)
    analyzer: str
    file: ArrayFile

    @property
    def size_bytes(self) -> int:
        """Size on disk. Bytes."""
        return self.file.bytes + len(self.serialized())


class EncoderEntry(BaseModel):
    """The encoder of vectors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    fingerprint: str
    dimension: int = Field(ge=1)


class DenseManifest(_Manifest):
    """The vectors of a segment, and the index over them if there is one."""

    format_version: Literal[1] = 1
    encoder: EncoderEntry
    num_vectors: int = Field(ge=1)
    kind: str
    """``flat``, ``hnsw`` or ``ivf-pq``."""
    recall: float = Field(ge=0, le=1)
    """Recall@100 against ``flat``, measured when it was built."""
    files: dict[str, FileEntry]

    @property
    def size_bytes(self) -> int:
        """Size on disk. Bytes."""
        return sum(entry.bytes for entry in self.files.values()) + len(self.serialized())


class TombstoneEntry(BaseModel):
    """Rows of a segment that are not there any more."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str = Field(pattern=r"^\d{6,}-[0-9a-f]{12}\.dead$")
    rows: int = Field(ge=1)
    bytes: int = Field(ge=1)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class SegmentEntry(BaseModel):
    """A segment as a version has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    num_passages: int = Field(ge=1)
    dense: str | None
    """Name of its dense index."""
    dead: TombstoneEntry | None


class LexicalEntry(BaseModel):
    """How text is indexed for BM25, fixed when the collection is made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    analyzer: str
    k1: float | None
    b: float | None


class VersionManifest(_Manifest):
    """Everything about a version of a collection except its name."""

    format_version: Literal[2] = 2
    tenant: str
    collection: str
    generation: int = Field(ge=1)
    description: str
    created_at: datetime
    lexical: LexicalEntry
    segments: tuple[SegmentEntry, ...]

    @property
    def name(self) -> Name:
        """The version's name."""
        return Name.of(self.generation, self.serialized())


M = TypeVar("M", bound=_Manifest)


def read(path: Path, name: str, kind: type[M]) -> M:
    """Return a manifest, after checking that it is the one that ``name`` was made from.

    Raises:
        Corrupt: it is missing, was changed, or is of a format that this version does not know.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Corrupt(f"{path} cannot be read: {error.strerror}") from None
    parsed = Name.parse(name)
    if parsed is None or hashlib.sha256(content).hexdigest()[:12] != parsed.digest:
        raise Corrupt(f"{path} is not the manifest that was written")
    try:
        return kind.model_validate_json(content)
    except ValidationError:
        raise Corrupt(f"{path} is of a format that this version of evenmesh does not know") from None


def check_size(path: Path, size: int) -> None:
    """Raise Corrupt unless a file is there and have that many bytes."""
    try:
        found = path.stat().st_size
    except OSError as error:
        raise Corrupt(f"{path} cannot be read: {error.strerror}") from None
    if found != size:
        raise Corrupt(f"{path} has {found} bytes, not {size}")


def check_content(path: Path, sha256: str) -> None:
    """Raise Corrupt unless a file has that hash. Reads all of it."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Corrupt(f"{path} cannot be read: {error.strerror}") from None
    if found != sha256:
        raise Corrupt(f"{path} does not have the SHA-256 of its manifest")


def check_first(
    files: Iterable[tuple[Path, str, int]],
    most: int,
    *,
    damaged: Container[Path],
    checked: Container[Path] = (),
) -> list[tuple[Path, str]]:
    """Check files, the smallest first, and return those that are to be checked later: path and SHA-256.

    Args:
        files: path, SHA-256 and bytes of each.
        most: how much is read now. Bytes.
        damaged: files that are known to be damaged.
        checked: files that were checked before.

    Raises:
        Corrupt: one is damaged.
    """
    later = []
    for path, sha256, size in sorted(files, key=lambda file: file[2]):
        if path in damaged:
            raise Corrupt(f"{path} does not have the SHA-256 of its manifest")
        if path in checked:
            continue
        most -= size
        if most < 0:
            later.append((path, sha256))
        else:
            check_content(path, sha256)
    return later


def entry_of(path: Path) -> FileEntry:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileEntry(bytes=path.stat().st_size, sha256=digest)
