"""Lay out a collection on disk, and read it there.

::

    <collections>/.writers/                                      who writes, see :mod:`.lease`
    <collections>/<tenant>/<name>/CURRENT                        name of the version served
    <collections>/<tenant>/<name>/versions/<version>.json        what a version consists of
    <collections>/<tenant>/<name>/versions/<name>.dead           rows of a segment that are gone
    <collections>/<tenant>/<name>/segments/<segment>/            manifest.json and arrays.bin
    <collections>/<tenant>/<name>/segments/<segment>/dense-…/    its vectors
    <collections>/<tenant>/.old-…/                               a collection that was removed

Names that begin with a dot are work in progress; whatever no version names is left over. Nothing here writes:
:mod:`.writable_directory` does.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from evenmesh_retriever.backends.segments.files import manifest as manifests
from evenmesh_retriever.backends.segments.files.dense import DensePart
from evenmesh_retriever.backends.segments.files.manifest import (
    MANIFEST,
    Corrupt,
    Name,
    SegmentEntry,
    TombstoneEntry,
    VersionManifest,
)
from evenmesh_retriever.backends.segments.files.segment import ARRAYS, BoolArray, Segment, Tombstones, View

POINTER: Final = "CURRENT"
"""The file that names the version served, in the folder of a collection."""

_log = logging.getLogger("evenmesh.retriever.store")


class SegmentDirectory:
    """The folder of one collection, to be read.

    Args:
        folder: the folder; its parent is the tenant's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def _segments(self) -> Path:
        return self.folder / "segments"

    @property
    def _versions(self) -> Path:
        return self.folder / "versions"

    def segment_folder(self, name: str) -> Path:
        """Return where a segment lies."""
        return self._segments / name

    def current(self) -> Name | None:
        """Return the version that the pointer names; None if the pointer is missing or damaged."""
        try:
            return Name.parse((self.folder / POINTER).read_text())
        except (OSError, UnicodeDecodeError):
            return None

    def versions(self) -> list[Name]:
        """Return all versions whose manifests lie here, the newest first."""
        names = (Name.parse(path.stem) for path in self._versions.glob("*.json"))
        return sorted((name for name in names if name is not None), reverse=True)

    def manifest(self, version: Name) -> VersionManifest:
        """Return the manifest of a version.

        Raises:
            Corrupt: it is not the one that was written, or of another collection.
        """
        path = self._versions / f"{version}.json"
        manifest = manifests.read(path, str(version), VersionManifest)
        if (manifest.tenant, manifest.collection) != (self.folder.parent.name, self.folder.name):
            raise Corrupt(f"{path} is of collection {manifest.collection!r} of {manifest.tenant!r}")
        return manifest

    def view(self, entry: SegmentEntry, opened: Mapping[str, View]) -> View:
        """Return a segment as a version has it.

        Args:
            entry: the segment.
            opened: views of segments that are open already, by name.

        Raises:
            Corrupt: something of it is not as it was written.
        """
        folder = self._segments / entry.name
        known = opened.get(entry.name)
        segment = known.segment if known is not None else Segment.open(folder)
        if len(segment) != entry.num_passages:
            raise Corrupt(f"{folder / MANIFEST} has {len(segment)} passages, not {entry.num_passages}")
        tombstones = Tombstones(segment, self._dead(entry.dead, len(segment))) if entry.dead else None
        part = known.dense if known is not None else None
        if part is None or part.name != entry.dense:
            part = DensePart.open(folder, entry.dense) if entry.dense else None
        return View(segment, tombstones, part)

    def files(self, view: View) -> Iterator[tuple[Path, str, int]]:
        """Yield the large files of a view: path, SHA-256 and bytes."""
        folder = self._segments / view.segment.name
        yield folder / ARRAYS, view.segment.manifest.file.sha256, view.segment.manifest.file.bytes
        if view.dense is not None:
            for name, entry in view.dense.manifest.files.items():
                yield view.dense.folder / name, entry.sha256, entry.bytes

    def newest_sound(
        self, check: Callable[[VersionManifest, Sequence[View]], None]
    ) -> tuple[VersionManifest, list[View], str]:
        """Return the version to serve: the one the pointer names, or, if that is corrupt, the one before.

        Args:
            check: raises Corrupt if something of a version is not as it was written.

        Returns:
            The version, its views, and what is wrong; empty if nothing is. Everything is logged by name.

        Raises:
            Corrupt: no version is sound; the message is about the one that should be served.
        """
        name = self.folder.name
        pointed = self.current()
        candidates = self.versions()
        first: Corrupt | None = None
        if pointed is None:
            first = Corrupt(f"{self.folder / POINTER} is missing or damaged")
            _log.error("collection %s: %s", name, first)
        else:
            candidates = [pointed] + [one for one in candidates if one.generation < pointed.generation]
        opened: dict[str, View] = {}
        for version in candidates:
            try:
                manifest = self.manifest(version)
                views = []
                for entry in manifest.segments:
                    views.append(self.view(entry, opened))
                    opened[entry.name] = views[-1]
                check(manifest, views)
            except Corrupt as error:
                _log.error("collection %s: version %s is corrupt: %s", name, version, error)
                first = first or error
                continue
            if first is None:
                return manifest, views, ""
            _log.error("collection %s: version %s, an earlier one, is served", name, version)
            return manifest, views, f"{first}; version {version} is served"
        raise first or Corrupt(f"{self.folder} holds no version")

    def _dead(self, entry: TombstoneEntry, size: int) -> BoolArray:
        path = self._versions / entry.file
        try:
            content = path.read_bytes()
        except OSError as error:
            raise Corrupt(f"{path} cannot be read: {error.strerror}") from None
        if hashlib.sha256(content).hexdigest() != entry.sha256 or len(content) != (size + 7) // 8:
            raise Corrupt(f"{path} does not have the SHA-256 of its manifest")
        return np.unpackbits(np.frombuffer(content, dtype=np.uint8), count=size).astype(np.bool_)


def collections(root: Path) -> Iterator[tuple[str, str]]:
    """Yield tenants and names of the collections, by ascending name.

    Raises:
        OSError: the folder cannot be read.
    """
    for tenant in sorted(path for path in root.iterdir() if not path.name.startswith(".") and path.is_dir()):
        for path in sorted(tenant.iterdir()):
            if not path.name.startswith(".") and path.is_dir():
                yield tenant.name, path.name
