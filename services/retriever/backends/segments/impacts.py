"""Learned sparse retrieval over segments: each has its weights in a folder, made once."""

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
from typing import TYPE_CHECKING, Final

from services.retriever.backends.bm25.kernel import Kernel
from services.retriever.backends.segments import durable
from services.retriever.backends.segments.manifest import Name, SegmentManifest
from services.retriever.backends.segments.merge import Plan
from services.retriever.backends.segments.segment import Segment
from services.retriever.backends.segments.selection import gathered, merged
from services.retriever.backends.segments.snapshot import OfVersion, SegmentSnapshot
from services.retriever.backends.splade.postings import ImpactPostings, SparseVector
from services.retriever.domain import Filter, Scored, Unranked
from services.retriever.ports import Snapshot

if TYPE_CHECKING:
    from services.retriever.backends.splade.sparse_encoder import SparseTextEncoder

_KEPT_S: Final = 30 * 24 * 3600
_log = logging.getLogger("ragmesh.retriever.splade")


class SegmentedImpacts(OfVersion):
    """The weights of one version.

    Args:
        snapshot: the version.
        postings: those of each of its segments.
        kernel: what runs the loops.
    """

    def __init__(self, snapshot: SegmentSnapshot, postings: Sequence[ImpactPostings], kernel: Kernel) -> None:
        super().__init__(snapshot)
        self._postings = postings
        self._kernel = kernel

    def search(self, query: SparseVector, n: int, where: Filter | None = None) -> Scored:
        """The best ``n`` of the passages that may be found, or all of them; equal ones by ascending id.

        Raises:
            InvalidField: no passage has an attribute of the filter.
        """
        masks = self._snapshot.allowed(where)
        found = [
            postings.search(query, n, self._kernel, mask)
            for postings, mask in zip(self._postings, masks, strict=True)
        ]
        return merged(found, self._snapshot.offsets, n, self._snapshot.id)

    def scores(self, query: SparseVector, where: Filter | None = None) -> Unranked:
        """All of the passages that may be found; raises as :meth:`search`."""
        masks = self._snapshot.allowed(where)
        scores = [postings.scores(query, self._kernel) for postings in self._postings]
        return gathered(scores, masks, self._snapshot.offsets)


class ImpactShelf:
    """Weights of segments on disk, by encoder and segment: a restart encodes nothing anew.

    The hash of a segment's manifest stands for all it consists of, so equal hashes have equal weights.

    Args:
        root: folder of the weights; made when there are some. What was not used for a month is removed.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        # Of texts of ingests that are under way; few at a time.
        self._ahead: list[dict[bytes, SparseVector]] = []
        for folder in root.glob("*/*"):
            if time.time() - folder.stat().st_mtime > _KEPT_S:
                shutil.rmtree(folder, ignore_errors=True)

    def index(
        self, snapshot: Snapshot, encoder: SparseTextEncoder, kernel: Kernel
    ) -> SegmentedImpacts | None:
        """The index of a version; its segments without weights by this encoder are encoded now."""
        if not isinstance(snapshot, SegmentSnapshot):
            return None
        postings = [self._postings(view.segment, encoder) for view in snapshot.views]
        return SegmentedImpacts(snapshot, postings, kernel)

    @contextmanager
    def ahead(self, encoder: SparseTextEncoder) -> Iterator[Callable[[Sequence[str]], None]]:
        """Encodes texts before the segments that will hold them are made, and keeps that for the block.

        So the long part of an ingest is over before it takes its turn to write. What is called with texts
        runs in a thread.
        """
        known: dict[bytes, SparseVector] = {}

        def encode(contents: Sequence[str]) -> None:
            vectors = encoder.encode_passages(contents, lambda _: None)
            known.update(zip(map(_text_digest, contents), vectors, strict=True))

        self._ahead.append(known)
        try:
            yield encode
        finally:
            # Not by value: two that are empty are equal.
            self._ahead = [one for one in self._ahead if one is not known]

    def _vectors(self, contents: Sequence[str], encoder: SparseTextEncoder) -> list[SparseVector]:
        """The weights of texts: those of texts that were encoded ahead, and the others' now."""
        digests = [_text_digest(content) for content in contents]
        known = {digest: part[digest] for part in list(self._ahead) for digest in digests if digest in part}
        missing = [content for content, one in zip(contents, digests, strict=True) if one not in known]
        made = iter(encoder.encode_passages(missing, lambda _: None) if missing else ())
        return [known[one] if one in known else next(made) for one in digests]

    def _postings(self, segment: Segment, encoder: SparseTextEncoder) -> ImpactPostings:
        folder = self._root / encoder.fingerprint / _digest(segment.manifest)
        if folder.is_dir():
            try:
                found = ImpactPostings.open(folder)
            except (OSError, EOFError, ValueError):
                _log.warning("weights of a segment cannot be read, and are made anew")
                shutil.rmtree(folder)
            else:
                os.utime(folder)
                return found
        contents = [segment.passage(row).content for row in range(len(segment))]
        built = ImpactPostings.build(self._vectors(contents, encoder), encoder.vocabulary)
        _save(built, folder)
        return ImpactPostings.open(folder)

    def carry(self, plan: Plan, manifest: SegmentManifest) -> None:
        """Takes over the weights of segments that have been merged into one."""
        for encoded in self._root.glob("[!.]*"):
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
    durable.move_folder(beside, folder)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
