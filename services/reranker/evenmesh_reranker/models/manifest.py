"""The manifest of a model version: its files, where it comes from, and what was measured of it."""

from __future__ import annotations

import errno
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_reranker.domain import Agent, AllAgents, Scope

FILE: Final = "manifest.json"
"""Name of the manifest in a version's folder."""

_FORMAT: Final = 1


class ManifestError(Exception):
    """Raised when a version is damaged or its manifest cannot be understood; one line."""


class StoreAwayError(ManifestError):
    """Raised when what keeps the versions does not answer now: they may well be whole; one line."""


AWAY: Final = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.ENOTCONN,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
    }
)
"""Errors of a file system on a network that does not answer, and says nothing of the files."""


class Kind(StrEnum):
    """What a version consists of."""

    FULL = "full"
    ADAPTER = "adapter"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a version: its size in bytes and the SHA-256 (hex) of its content."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a version comes from.

    Attributes:
        provenance: what made it, such as ``offline-ium round 3``; one line.
        parent: version it was trained from; empty if none.
        agent: the one agent it serves; None if it serves all agents of the tenant.
        kind: all parameters, or changes to those of ``base``.
        base: of an adapter, the version it changes; empty otherwise.
        metrics: measured values by name; None where undefined.
        tenant: tenant whose feedback it was learned from; no other tenant can use or list it.
    """

    provenance: str
    parent: str = ""
    agent: Agent | None = None
    kind: Kind = Kind.FULL
    base: str = ""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    tenant: str = DEFAULT_TENANT

    @property
    def scope(self) -> Scope:
        """The agents it serves."""
        return AllAgents(self.tenant) if self.agent is None else self.agent

    def applies_to(self, base: str | None) -> bool:
        """Return whether it can serve its agent while ``base`` serves all agents."""
        return self.kind is Kind.FULL or self.base == base


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a version.

    Attributes:
        version: 16 hexadecimal digits, a digest of files and lineage.
        created_at: when it was made, UTC.
        lineage: where it comes from.
        tokens: agent tokens of its tokenizer, ascending.
        files: its files by name, without the manifest.
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
        """Return the manifest of the files in a folder.

        Raises:
            ManifestError: there is no file, or the lineage contradicts itself.
        """
        _check(lineage)
        paths = [path for path in sorted(folder.iterdir()) if path.name != FILE]
        if not paths or not all(path.is_file() for path in paths):
            raise ManifestError("a version needs files, and no folders")
        manifest = cls("", created_at, lineage, tokens, {path.name: _entry(path) for path in paths})
        # Without the time: a trainer that starts again and gets as far as before writes the same version.
        content = json.dumps(manifest._content(), sort_keys=True)
        version = hashlib.sha256(content.encode()).hexdigest()[:16]
        return cls(version, created_at, lineage, tokens, manifest.files)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest in a folder, without its files.

        Raises:
            ManifestError: it is missing or cannot be understood.
        """
        try:
            content = (folder / FILE).read_bytes()
        except OSError as error:
            raise _unread(FILE, error) from None
        return cls.parse(content)

    @classmethod
    def parse(cls, content: bytes) -> Manifest:
        """Return the manifest that a file's content states.

        Raises:
            ManifestError: it cannot be understood.
        """
        try:
            data = json.loads(content)
            if data["format"] != _FORMAT:
                raise ManifestError("its manifest is of a later version of evenmesh")
            agent = data["lineage"]["agent"]
            tenant = str(data["lineage"].get("tenant", DEFAULT_TENANT))
            lineage = {
                **data["lineage"],
                "agent": None if agent is None else Agent(agent["task_id"], agent["model_id"], tenant),
                "kind": Kind(data["lineage"]["kind"]),
            }
            return cls(
                str(data["version"]),
                datetime.fromisoformat(data["created_at"]).astimezone(UTC),
                Lineage(**lineage),
                tuple(map(str, data["tokens"])),
                {
                    name: FileEntry(int(one["size"]), str(one["sha256"]))
                    for name, one in data["files"].items()
                },
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ManifestError(f"its manifest cannot be understood: {type(error).__name__}") from None

    def write(self, folder: Path) -> None:
        """Write the manifest into a folder; the caller makes it durable."""
        data = {
            "format": _FORMAT,
            "version": self.version,
            "created_at": self.created_at.isoformat(),
            **self._content(),
        }
        (folder / FILE).write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    def verify(self, folder: Path) -> None:
        """Compare all files of a folder with the manifest.

        Raises:
            ManifestError: a file is missing, unknown, or has another size or content; the error names it.
        """
        try:
            there = {path.name for path in folder.iterdir()} - {FILE}
        except OSError as error:
            raise _unread("its folder", error) from None
        if missing := sorted(self.files.keys() - there):
            raise ManifestError(f"{missing[0]} is missing")
        if extra := sorted(there - self.files.keys()):
            raise ManifestError(f"{extra[0]} is not in its manifest")
        for name, entry in self.files.items():
            try:
                found = _entry(folder / name)
            except OSError as error:
                raise _unread(name, error) from None
            if found.size != entry.size:
                raise ManifestError(f"{name} has {found.size} bytes and should have {entry.size}")
            if found.sha256 != entry.sha256:
                raise ManifestError(f"{name} is damaged: its SHA-256 is not the manifest's")

    def _content(self) -> dict[str, Any]:
        lineage, agent = self.lineage, self.lineage.agent
        # The default tenant is left out, so that versions from before there were tenants keep their names.
        tenant = {} if lineage.tenant == DEFAULT_TENANT else {"tenant": lineage.tenant}
        return {
            "lineage": {
                **tenant,
                "provenance": lineage.provenance,
                "parent": lineage.parent,
                "agent": None if agent is None else {"task_id": agent.task_id, "model_id": agent.model_id},
                "kind": lineage.kind.value,
                "base": lineage.base,
                "metrics": dict(lineage.metrics),
            },
            "tokens": self.tokens,
            "files": {name: asdict(one) for name, one in self.files.items()},
        }


def _check(lineage: Lineage) -> None:
    if (lineage.kind is Kind.ADAPTER) is not bool(lineage.base):
        raise ManifestError("an adapter has a base, and only an adapter")
    if lineage.kind is Kind.ADAPTER and lineage.agent is None:
        raise ManifestError("an adapter is an agent's own")
    if lineage.scope.tenant != lineage.tenant:
        raise ManifestError("an agent's own version is its tenant's")
    for name, value in lineage.metrics.items():
        if value is not None and not math.isfinite(value):
            raise ManifestError(f"the metric {name} is {value}; an undefined value is None")


def _unread(name: str, error: OSError) -> ManifestError:
    kind = StoreAwayError if error.errno in AWAY else ManifestError
    return kind(f"{'its manifest' if name == FILE else name} cannot be read: {error.strerror}")


def _entry(path: Path) -> FileEntry:
    with path.open("rb") as stream:
        return FileEntry(path.stat().st_size, hashlib.file_digest(stream, "sha256").hexdigest())
