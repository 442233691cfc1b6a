"""Write the folder of a collection, and clean it up after a crash."""

from __future__ import annotations

import hashlib
import logging
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from evenmesh_kit.storage import durable_files
from evenmesh_retriever.backends.segments.files import dense, faults
from evenmesh_retriever.backends.segments.files.lease import WriterLease
from evenmesh_retriever.backends.segments.files.manifest import (
    Name,
    SegmentManifest,
    TombstoneEntry,
    VersionManifest,
)
from evenmesh_retriever.backends.segments.files.segment import Segment, View
from evenmesh_retriever.backends.segments.files.segment_directory import POINTER, SegmentDirectory

_BUILD, _OLD = ".build-", ".old-"
_PARTIAL: Final = ".partial-"
"""Begins the name of the folder of vectors that are being made, in the segment's."""

_log = logging.getLogger("evenmesh.retriever.store")


class WritableDirectory(SegmentDirectory):
    """The folder of one collection, to be written.

    What is new gets names that nobody else has. What takes effect, or takes something away, passes through
    the lease, so that it fails once another writer has the folder.

    Args:
        folder: the folder; its parent is the tenant's.
        lease: the right to write it.
    """

    def __init__(self, folder: Path, lease: WriterLease) -> None:
        super().__init__(folder)
        self._lease = lease

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
        self._lease.replace(self.folder / POINTER, str(manifest.name).encode())
        faults.point("swap.done")

    def generation(self) -> int:
        """Return the largest number that a version or segment has here; 0 without."""
        names = [path.stem for path in self._versions.glob("*.json")]
        names += [path.name for path in self._segments.iterdir()]
        return max((name.generation for one in names if (name := Name.parse(one))), default=0)

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
                self._lease.discard(path)
        for folder in self._segments.iterdir():
            if folder.name.startswith("."):
                continue
            if folder.name not in segments:
                self._lease.discard(folder)
                continue
            for part in dense.folders(folder):
                if (folder.name, dense.name_of(part)) not in parts:
                    self._lease.discard(part)

    def tidy(self, fingerprint: str) -> None:
        """Remove work in progress, except vectors of this encoder: their making is taken up again.

        They are made anew where the one that made them may still write to them.
        """
        for path in [*self.folder.glob(".*"), *self._versions.glob(".*"), *self._segments.glob(".*")]:
            _log.warning("removing %s of %s, left by a write that was cut short", path.name, self.folder.name)
            self._lease.discard(path)
        pointed = self.current()
        for version in self.versions():
            if pointed is not None and version.generation > pointed.generation:
                _log.warning(
                    "removing version %s of collection %s: it was never current", version, self.folder.name
                )
                self._lease.discard(self._versions / f"{version}.json")
        for path in self._segments.glob("*/.*"):
            ours = self.partial(path.parent.name, fingerprint)
            if path == ours:
                continue
            before = ours.with_name(f"{_PARTIAL}{fingerprint}-{self._lease.number - 1}")
            if path == before and self._lease.inherited:
                self._lease.withdraw(path, ours)
            else:
                self._lease.discard(path)

    def partial(self, segment: str, fingerprint: str) -> Path:
        """Return the folder of a segment's vectors by an encoder while this process makes them."""
        return self._segments / segment / f"{_PARTIAL}{fingerprint}-{self._lease.number}"

    def clear(self, segment: str, part: str) -> None:
        """Remove vectors of a segment that no version names, before others of that name take their place."""
        self._lease.discard(dense.folder_of(self._segments / segment, part))


@contextmanager
def unborn(tenant: Path, lease: WriterLease) -> Iterator[Path]:
    """Yield a folder to build a collection of a tenant in; remove what is left of it at the end."""
    if not tenant.exists():
        tenant.mkdir(exist_ok=True)
        durable_files.sync_folder(tenant.parent)
    path = lease.stage()
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def bury(folder: Path, lease: WriterLease) -> Path:
    """Remove a collection, at once as far as anyone can see; return where its files still are."""
    grave = folder.with_name(f"{_OLD}{secrets.token_hex(6)}")
    lease.withdraw(folder, grave)
    durable_files.sync_folder(grave.parent)
    return grave


def left_over(root: Path) -> list[Path]:
    """Return the collections whose removal was cut short."""
    return sorted(root.glob(f"[!.]*/{_OLD}*"))
