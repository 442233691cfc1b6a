"""Lay out a collection on disk, and clean up after a crash.

::

    <collections>/<tenant>/<name>/CURRENT                        name of the version served
    <collections>/<tenant>/<name>/versions/<version>.json        what a version consists of
    <collections>/<tenant>/<name>/versions/<name>.dead           rows of a segment that are gone
    <collections>/<tenant>/<name>/segments/<segment>/            manifest.json and arrays.bin
    <collections>/<tenant>/<name>/segments/<segment>/dense-…/    its vectors
    <collections>/<tenant>/.new-…/  .old-…/                      a collection being created or removed

Names that begin with a dot are work in progress; whatever no version names is left over.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from evenmesh_kit.storage import durable_files
from evenmesh_retriever.backends.segments.files import dense, faults
from evenmesh_retriever.backends.segments.files import manifest as manifests
from evenmesh_retriever.backends.segments.files.dense import DensePart
from evenmesh_retriever.backends.segments.files.manifest import (
    MANIFEST,
    Corrupt,
    Name,
    SegmentEntry,
    SegmentManifest,
    TombstoneEntry,
    VersionManifest,
)
from evenmesh_retriever.backends.segments.files.segment import ARRAYS, BoolArray, Segment, Tombstones, View

_POINTER: Final = "CURRENT"
_BUILD, _NEW, _OLD = ".build-", ".new-", ".old-"
PARTIAL: Final = ".partial-"
"""Begins the name of the folder of vectors that are being made, in the segment's."""

_log = logging.getLogger("evenmesh.retriever.store")


class SegmentDirectory:
    """The folder of one collection.

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

    def make(self) -> None:
        """Make the folders."""
        self._segments.mkdir(parents=True)
        self._versions.mkdir()
        durable_files.sync_folder(self.folder)

    def begin(self) -> Path:
        """Return a new folder for a segment to be."""
        path = self._segments / f"{_BUILD}{secrets.token_hex(6)}"
        path.mkdir()
        return path

    def abandon(self, folder: Path) -> None:
        """Remove what is left of a segment to be: nothing, if it has become one."""
        shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a folder for a segment to be; what is still there at the end is removed."""
        path = self.begin()
        try:
            yield path
        finally:
            self.abandon(path)

    def segment_folder(self, name: str) -> Path:
        """Return where a segment lies."""
        return self._segments / name

    def add(self, built: Path, generation: int, manifest: SegmentManifest) -> Segment:
        """Move a segment that is written to its place; it counts once a version names it."""
        folder = self._segments / str(Name.of(generation, manifest.serialized()))
        durable_files.move_folder(built, folder)
        return Segment(folder, manifest)

    def bury(self, generation: int, view: View) -> TombstoneEntry | None:
        """Write the tombstones of a view, if it has any."""
        if view.tombstones is None:
            return None
        content = np.packbits(view.tombstones.dead).tobytes()
        # Two segments may have lost the same rows; their tombstones are of two files all the same.
        digest = hashlib.sha256(view.segment.name.encode() + content).hexdigest()[:12]
        name = f"{generation:06d}-{digest}.dead"
        durable_files.write(self._versions / name, content)
        faults.point("ingest.tombstones")
        return TombstoneEntry(
            file=name,
            rows=view.num_dead,
            bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
        )

    def publish(self, manifest: VersionManifest) -> None:
        """Make a version whose segments and tombstones are in place the current one.

        The pointer's rename is the moment: a crash before it leaves the old version, after it the new one.
        """
        durable_files.write(self._versions / f"{manifest.name}.json", manifest.serialized())
        durable_files.sync_folder(self._versions)
        faults.point("swap.version-written")
        durable_files.replace(self.folder / _POINTER, str(manifest.name).encode())
        faults.point("swap.done")

    def generation(self) -> int:
        """Return the largest number that a version or segment has here; 0 without."""
        names = [path.stem for path in self._versions.glob("*.json")]
        names += [path.name for path in self._segments.iterdir()]
        return max((name.generation for one in names if (name := Name.parse(one))), default=0)

    def current(self) -> Name | None:
        """Return the version that the pointer names; None if the pointer is missing or damaged."""
        try:
            return Name.parse((self.folder / _POINTER).read_text())
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

    def view(self, entry: SegmentEntry, opened: Mapping[str, Segment]) -> View:
        """Return a segment as a version has it.

        Raises:
            Corrupt: something of it is not as it was written.
        """
        folder = self._segments / entry.name
        segment = opened.get(entry.name) or Segment.open(folder)
        if len(segment) != entry.num_passages:
            raise Corrupt(f"{folder / MANIFEST} has {len(segment)} passages, not {entry.num_passages}")
        tombstones = Tombstones(segment, self._dead(entry.dead, len(segment))) if entry.dead else None
        return View(segment, tombstones, DensePart.open(folder, entry.dense) if entry.dense else None)

    def files(self, view: View) -> Iterator[tuple[Path, str, int]]:
        """Yield the large files of a view: path, SHA-256 and bytes."""
        folder = self._segments / view.segment.name
        yield folder / ARRAYS, view.segment.manifest.file.sha256, view.segment.manifest.file.bytes
        if view.dense is not None:
            for name, entry in view.dense.manifest.files.items():
                yield view.dense.folder / name, entry.sha256, entry.bytes

    def sweep(self, keep: Iterable[VersionManifest]) -> None:
        """Remove versions that are not to be kept, and what then belongs to none.

        Nothing else may write here at the time, except into folders whose name begins with a dot.
        """
        faults.point("sweep.begun")
        kept = list(keep)
        segments = {entry.name for manifest in kept for entry in manifest.segments}
        parts = {(entry.name, entry.dense) for manifest in kept for entry in manifest.segments}
        files = {f"{manifest.name}.json" for manifest in kept}
        files |= {entry.dead.file for manifest in kept for entry in manifest.segments if entry.dead}
        for path in self._versions.iterdir():
            if path.name not in files:
                path.unlink(missing_ok=True)
        for folder in self._segments.iterdir():
            if folder.name.startswith("."):
                continue
            if folder.name not in segments:
                shutil.rmtree(folder, ignore_errors=True)
                continue
            for part in dense.folders(folder):
                if (folder.name, dense.name_of(part)) not in parts:
                    shutil.rmtree(part, ignore_errors=True)

    def tidy(self, fingerprint: str) -> None:
        """Remove work in progress, except vectors of this encoder: their making is taken up again."""
        for path in [*self.folder.glob(".*"), *self._versions.glob(".*"), *self._segments.glob(".*")]:
            _log.warning("removing %s of %s, left by a write that was cut short", path.name, self.folder.name)
            _remove(path)
        for path in self._segments.glob("*/.*"):
            if path.name != f"{PARTIAL}{fingerprint}":
                _remove(path)

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
            first = Corrupt(f"{self.folder / _POINTER} is missing or damaged")
            _log.error("collection %s: %s", name, first)
        else:
            for version in [one for one in candidates if one.generation > pointed.generation]:
                _log.warning("removing version %s of collection %s: it was never current", version, name)
                (self._versions / f"{version}.json").unlink(missing_ok=True)
            candidates = [pointed] + [one for one in candidates if one.generation < pointed.generation]
        opened: dict[str, Segment] = {}
        for version in candidates:
            try:
                manifest = self.manifest(version)
                views = []
                for entry in manifest.segments:
                    views.append(self.view(entry, opened))
                    opened[entry.name] = views[-1].segment
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


@contextmanager
def unborn(tenant: Path) -> Iterator[Path]:
    """Yield a folder beside a tenant's collections to build one in; remove what is left of it at the end."""
    if not tenant.exists():
        tenant.mkdir(exist_ok=True)
        durable_files.sync_folder(tenant.parent)
    path = tenant / f"{_NEW}{secrets.token_hex(6)}"
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def remove(folder: Path) -> None:
    """Remove a collection, at once as far as anyone can see."""
    grave = folder.with_name(f"{_OLD}{secrets.token_hex(6)}")
    durable_files.move_folder(folder, grave)
    shutil.rmtree(grave, ignore_errors=True)


def collections(root: Path) -> list[tuple[str, str]]:
    """Return tenants and names of the collections, after removing what was cut short."""
    found = []
    for tenant in sorted(path for path in root.iterdir() if path.is_dir()):
        if (tenant / _POINTER).exists():
            _log.warning(
                "%s is a collection in the format of evenmesh 0.1 and is not served: ingest it anew", tenant
            )
            continue
        for path in sorted(tenant.iterdir()):
            if path.name.startswith((_NEW, _OLD)):
                _log.warning("removing %s, left by a creation or removal that was cut short", path.name)
                _remove(path)
            elif path.is_dir() and not path.name.startswith("."):
                found.append((tenant.name, path.name))
    return found


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
