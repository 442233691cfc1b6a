"""What a model version says of itself: its files, where it comes from, what was measured of it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from services.reranker.domain import DEFAULT_TENANT, Agent, Audience, Everyone

FILE: Final = "manifest.json"
"""Name of the manifest in a version's folder."""

_FORMAT: Final = 1


class ManifestError(Exception):
    """A version that is not whole, or says of itself what cannot be understood; one line."""


class Kind(StrEnum):
    """What a version consists of."""

    FULL = "full"
    ADAPTER = "adapter"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a version: its size in bytes and the SHA-256 of its content, hexadecimal."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a version comes from.

    Attributes:
        provenance: what made it, such as ``offline-ium round 3``; one line.
        parent: version it was trained from; empty if there is none.
        agent: the agent whose own it is; None if it serves all agents of the tenant.
        kind: all parameters, or changes to those of ``base``.
        base: of an adapter, the version it changes; empty otherwise.
        metrics: what was measured of it, by name; None where undefined.
        tenant: from whose feedback it was learned; nobody else is served it or told of it.
    """

    provenance: str
    parent: str = ""
    agent: Agent | None = None
    kind: Kind = Kind.FULL
    base: str = ""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    tenant: str = DEFAULT_TENANT

    @property
    def whose(self) -> Audience:
        """Whom it serves."""
        return Everyone(self.tenant) if self.agent is None else self.agent


@dataclass(frozen=True, slots=True)
class Manifest:
    """A version as its folder says.

    Attributes:
        version: 16 hexadecimal digits that stand for its files and lineage.
        created_at: when it was made, UTC.
        lineage: where it comes from.
        tokens: tokens of agents that its tokenizer has, ascending.
        files: its files by name, the manifest aside.
    """

    version: str
    created_at: datetime
    lineage: Lineage
    tokens: tuple[str, ...]
    files: Mapping[str, FileEntry]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files.values())

    @classmethod
    def of(cls, folder: Path, lineage: Lineage, tokens: tuple[str, ...], created_at: datetime) -> Manifest:
        """The manifest of the files in a folder.

        Raises:
            ManifestError: there is no file, or the lineage contradicts itself.
        """
        _check(lineage)
        paths = [path for path in sorted(folder.iterdir()) if path.name != FILE]
        if not paths or not all(path.is_file() for path in paths):
            raise ManifestError("a version needs files, and no folders")
        files = {path.name: _entry(path) for path in paths}
        told = {"lineage": _lineage_json(lineage), "tokens": tokens, "files": _files_json(files)}
        # Made of the same files in the same way, a version is the same: a trainer that is started again
        # and gets as far as before writes no second one.
        digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
        return cls(digest[:16], created_at, lineage, tokens, files)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest in a folder; its files are not looked at.

        Raises:
            ManifestError: it is not there, or cannot be understood.
        """
        try:
            told = json.loads((folder / FILE).read_bytes())
            if told["format"] != _FORMAT:
                raise ManifestError("its manifest is of a later version of ragmesh")
            agent = told["lineage"]["agent"]
            tenant = str(told["lineage"].get("tenant", DEFAULT_TENANT))
            lineage = {
                **told["lineage"],
                "agent": None if agent is None else Agent(agent["task_id"], agent["model_id"], tenant),
                "kind": Kind(told["lineage"]["kind"]),
            }
            return cls(
                str(told["version"]),
                datetime.fromisoformat(told["created_at"]).astimezone(UTC),
                Lineage(**lineage),
                tuple(map(str, told["tokens"])),
                {
                    name: FileEntry(int(one["size"]), str(one["sha256"]))
                    for name, one in told["files"].items()
                },
            )
        except OSError as error:
            raise ManifestError(f"its manifest cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ManifestError(f"its manifest cannot be understood: {type(error).__name__}") from None

    def write(self, folder: Path) -> None:
        """Writes it into a folder; not durable by itself."""
        told = {
            "format": _FORMAT,
            "version": self.version,
            "created_at": self.created_at.isoformat(),
            "lineage": _lineage_json(self.lineage),
            "tokens": self.tokens,
            "files": _files_json(self.files),
        }
        (folder / FILE).write_text(json.dumps(told, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    def verify(self, folder: Path) -> None:
        """Compares all files of a folder with what the manifest says of them.

        Raises:
            ManifestError: one is missing, too many, or has another size or content; it is named.
        """
        there = {path.name for path in folder.iterdir()} - {FILE}
        if missing := sorted(self.files.keys() - there):
            raise ManifestError(f"{missing[0]} is missing")
        if extra := sorted(there - self.files.keys()):
            raise ManifestError(f"{extra[0]} is not of it")
        for name, entry in self.files.items():
            try:
                found = _entry(folder / name)
            except OSError as error:
                raise ManifestError(f"{name} cannot be read: {error.strerror}") from None
            if found.size != entry.size:
                raise ManifestError(f"{name} has {found.size} bytes and should have {entry.size}")
            if found.sha256 != entry.sha256:
                raise ManifestError(f"{name} is damaged: its SHA-256 is not the manifest's")


def _check(lineage: Lineage) -> None:
    if (lineage.kind is Kind.ADAPTER) is not bool(lineage.base):
        raise ManifestError("an adapter has a base, and only an adapter")
    if lineage.kind is Kind.ADAPTER and lineage.agent is None:
        raise ManifestError("an adapter is an agent's own")
    if lineage.whose.tenant != lineage.tenant:
        raise ManifestError("an agent's own is its tenant's")
    for name, value in lineage.metrics.items():
        if value is not None and not math.isfinite(value):
            raise ManifestError(f"the metric {name} is {value}; what is undefined is None")


def _entry(path: Path) -> FileEntry:
    with path.open("rb") as stream:
        return FileEntry(path.stat().st_size, hashlib.file_digest(stream, "sha256").hexdigest())


def _lineage_json(lineage: Lineage) -> dict[str, Any]:
    agent = lineage.agent
    # The tenant that there was before there were others has the versions it had then.
    whose = {} if lineage.tenant == DEFAULT_TENANT else {"tenant": lineage.tenant}
    return {
        **whose,
        "provenance": lineage.provenance,
        "parent": lineage.parent,
        "agent": None if agent is None else {"task_id": agent.task_id, "model_id": agent.model_id},
        "kind": lineage.kind.value,
        "base": lineage.base,
        "metrics": dict(lineage.metrics),
    }


def _files_json(files: Mapping[str, FileEntry]) -> dict[str, Any]:
    return {name: {"size": one.size, "sha256": one.sha256} for name, one in files.items()}
