"""Search segments by learned sparse weights, computed once per segment and kept in a folder."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from evenmesh_kit.storage import durable_files
from evenmesh_retriever.backends.segments.building.merge import MergeOrder
from evenmesh_retriever.backends.segments.files.manifest import Name, SegmentManifest
from evenmesh_retriever.backends.segments.files.segment import Segment
from evenmesh_retriever.backends.segments.selection import gathered, merged
from evenmesh_retriever.backends.segments.snapshot import OfVersion, SegmentSnapshot
from evenmesh_retriever.backends.splade.postings import ImpactPostings, SparseTextEncoder, SparseVector
from evenmesh_retriever.domain import Filter, Scored, Unranked
from evenmesh_retriever.ports import Snapshot

_KEPT_S: Final = 30 * 24 * 3600
_log = logging.getLogger("evenmesh.retriever.splade")


class SegmentedImpacts(OfVersion):
    """The weights of one version.

    Args:
        snapshot: the version.
        postings: those of each of its segments.
    """

    def __init__(self, snapshot: SegmentSnapshot, postings: Sequence[ImpactPostings]) -> None:
        super().__init__(snapshot)
        self._postings = postings

    def search(self, query: SparseVector, n: int, where: Filter | None = None) -> Scored:
        """Return the best ``n`` of the allowed passages, or all of them; equal scores by ascending id.

        Raises:
            InvalidField: no passage has an attribute of the filter.
        """
        masks = self._snapshot.allowed(where)
        found = [
            postings.search(query, n, mask) for postings, mask in zip(self._postings, masks, strict=True)
        ]
        return merged(found, self._snapshot.offsets, n, self._snapshot.id)

    def scores(self, query: SparseVector, where: Filter | None = None) -> Unranked:
        """Return all of the passages that may be found; raises as :meth:`search`."""
        masks = self._snapshot.allowed(where)
        scores = [postings.scores(query) for postings in self._postings]
        return gathered(scores, masks, self._snapshot.offsets)


class ImpactCache:
    """Weights of segments on disk, by encoder, tenant and segment: a restart encodes nothing anew.

    The hash of a segment's manifest stands for all it consists of, so equal hashes have equal weights.
    Tenants share none: the time of an ingest must not tell what another one has.

    Args:
        root: folder of the weights; made when there are some. What was not used for a month is removed.
        read_only: whether another process makes the weights: nothing is written, and a version is searched
            if all of its segments have weights there.
    """

    def __init__(self, root: Path, *, read_only: bool = False) -> None:
        self._root = root
        self._read_only = read_only
        # Of texts of ingests that are under way, with their tenants; few at a time.
        self._ahead: list[tuple[str, dict[bytes, SparseVector]]] = []
        if read_only:
            return
        for folder in root.glob("*/*/*"):
            if not folder.is_dir():  # weights of evenmesh 0.2, whose tenants shared them
                shutil.rmtree(folder.parent, ignore_errors=True)
            elif time.time() - folder.stat().st_mtime > _KEPT_S:
                shutil.rmtree(folder, ignore_errors=True)

    def index(self, snapshot: Snapshot, encoder: SparseTextEncoder) -> SegmentedImpacts | None:
        """Return the index of a version; its segments without weights by this encoder are encoded now.

        None where the weights are another process's to make, and are not all there.
        """
        if not isinstance(snapshot, SegmentSnapshot):
            return None
        tenant = snapshot.manifest.tenant
        if self._read_only:
            folders = [self._folder(view.segment, encoder, tenant) for view in snapshot.views]
            try:
                postings = [ImpactPostings.open(folder) for folder in folders]
            except (OSError, EOFError, ValueError):
                return None
        else:
            postings = [self._postings(view.segment, encoder, tenant) for view in snapshot.views]
        return SegmentedImpacts(snapshot, postings)

    @contextmanager
    def ahead(self, encoder: SparseTextEncoder, tenant: str) -> Iterator[Callable[[Sequence[str]], None]]:
        """Encode a tenant's texts before the segments that will hold them are made; keep that for the block.

        So the long part of an ingest is over before it takes its turn to write. What is called with texts
        runs in a thread.
        """
        known: dict[bytes, SparseVector] = {}

        def encode(contents: Sequence[str]) -> None:
            vectors = encoder.encode_passages(contents, lambda _: None)
            known.update(zip(map(_text_digest, contents), vectors, strict=True))

        self._ahead.append((tenant, known))
        try:
            yield encode
        finally:
            # Not by value: two that are empty are equal.
            self._ahead = [one for one in self._ahead if one[1] is not known]

    def _vectors(
        self, contents: Sequence[str], encoder: SparseTextEncoder, tenant: str
    ) -> list[SparseVector]:
        """Return the weights of a tenant's texts: those of texts encoded ahead, and the others' now."""
        digests = [_text_digest(content) for content in contents]
        parts = [part for owner, part in list(self._ahead) if owner == tenant]
        known = {digest: part[digest] for part in parts for digest in digests if digest in part}
        missing = [content for content, one in zip(contents, digests, strict=True) if one not in known]
        made = iter(encoder.encode_passages(missing, lambda _: None) if missing else ())
        return [known[one] if one in known else next(made) for one in digests]

    def _postings(self, segment: Segment, encoder: SparseTextEncoder, tenant: str) -> ImpactPostings:
        folder = self._folder(segment, encoder, tenant)
        if folder.is_dir():
            try:
                found = ImpactPostings.open(folder)
            except (OSError, EOFError, ValueError):
                _log.warning("weights of a segment cannot be read, and are made anew")
                shutil.rmtree(folder)
            else:
                os.utime(folder)
                return found
        contents = [segment.records.passage(row).content for row in range(len(segment))]
        built = ImpactPostings.build(self._vectors(contents, encoder, tenant), encoder.vocabulary)
        _save(built, folder)
        return ImpactPostings.open(folder)

    def _folder(self, segment: Segment, encoder: SparseTextEncoder, tenant: str) -> Path:
        return self._root / encoder.fingerprint / tenant / _digest(segment.manifest)

    def carry(self, tenant: str, plan: MergeOrder, manifest: SegmentManifest) -> None:
        """Take over the weights of a tenant's segments that have been merged into one."""
        for encoded in self._root.glob(f"[!.]*/{tenant}"):
            folders = [encoded / _digest(view.segment.manifest) for view in plan.views]
            if all(folder.is_dir() for folder in folders):
                merged = ImpactPostings.merge(map(ImpactPostings.open, folders), plan.new_rows, len(plan))
                _save(merged, encoded / _digest(manifest))


def _text_digest(content: str) -> bytes:
    return hashlib.blake2b(content.encode(), digest_size=16).digest()


def _digest(manifest: SegmentManifest) -> str:
    return Name.of(0, manifest.serialized()).digest


def _save(postings: ImpactPostings, folder: Path) -> None:
    beside = Path(tempfile.mkdtemp(prefix=".new-", dir=_made(folder.parent)))
    postings.save(beside)
    shutil.rmtree(folder, ignore_errors=True)
    durable_files.move_folder(beside, folder)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
