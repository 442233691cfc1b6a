"""A collection in service: the version served, those that readers hold, and those that stay for a while."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field, replace
from threading import Event

from evenmesh_retriever.backends.segments.building.writer import CollectionWriter
from evenmesh_retriever.backends.segments.files.manifest import VersionManifest
from evenmesh_retriever.backends.segments.quotas import Usage
from evenmesh_retriever.backends.segments.snapshot import SegmentSnapshot
from evenmesh_retriever.domain import CollectionInfo


class OpenVersion:
    """A version that is open, and how many readers hold it."""

    def __init__(self, snapshot: SegmentSnapshot) -> None:
        self.snapshot = snapshot
        self.readers = 0


@dataclass(eq=False)
class ServedCollection:
    """A collection in service."""

    writer: CollectionWriter
    served: OpenVersion
    """The version that new readers get."""
    previous: VersionManifest | None
    """The version before, kept on disk in case the one served turns out corrupt."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by who writes."""
    gone: Event = field(default_factory=Event)
    """Set when it is removed."""
    held: list[OpenVersion] = field(default_factory=list)
    """Earlier versions that readers have."""
    busy: set[str] = field(default_factory=set)
    """Segments that are being merged or embedded."""
    embedded: dict[str, int] = field(default_factory=dict)
    """Rows that have vectors, of segments that are being embedded."""
    keep_s: float = 0.0
    """How long versions stay that were replaced. Seconds."""
    replaced: deque[tuple[float, VersionManifest]] = field(default_factory=deque)
    """Versions that stay for now, and until when."""
    timer: asyncio.TimerHandle | None = None
    """Removes them."""

    @property
    def kept(self) -> list[VersionManifest]:
        """Versions whose files are needed."""
        now = time.monotonic()
        while self.replaced and self.replaced[0][0] <= now:
            self.replaced.popleft()
        manifests = [version.snapshot.manifest for version in (self.served, *self.held)]
        manifests += [manifest for _, manifest in self.replaced]
        return manifests if self.previous is None else [*manifests, self.previous]

    @property
    def usage(self) -> Usage:
        """What it holds."""
        return Usage(len(self.served.snapshot), self.served.snapshot.passage_bytes)

    def serve(self, snapshot: SegmentSnapshot) -> None:
        """Serve a new version."""
        if self.served.readers:
            self.held.append(self.served)
        self.previous = self.served.snapshot.manifest
        self.keep(self.previous)
        self.served = OpenVersion(snapshot)

    def keep(self, manifest: VersionManifest) -> None:
        """Keep a version that is not served for a while."""
        if self.keep_s:
            self.replaced.append((time.monotonic() + self.keep_s, manifest))

    def info(self) -> CollectionInfo:
        """Return the current state of the collection, with the progress of embedding."""
        snapshot = self.served.snapshot
        lacking = {view.segment.name: view for view in snapshot.views if view.segment.name in self.embedded}
        if not lacking:
            return snapshot.info
        # Rows that are gone since are counted as much as others: the figure is for watching, not for sums.
        more = sum(
            self.embedded[name] / len(view.segment) * view.num_passages for name, view in lacking.items()
        )
        return replace(
            snapshot.info, embedded=min(1.0, snapshot.info.embedded + more / max(1, len(snapshot)))
        )
