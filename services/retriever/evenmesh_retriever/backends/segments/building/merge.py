"""Merge segments into one without their deleted passages; no text is analysed again.

Everything is moved in blocks: memory is for blocks, ids and terms, and not for all that the segments hold.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from evenmesh_kit.storage import durable_files
from evenmesh_retriever.backends.segments.files import dense, faults
from evenmesh_retriever.backends.segments.files.arrays import ArrayWriter
from evenmesh_retriever.backends.segments.files.attributes import Entries
from evenmesh_retriever.backends.segments.files.attributes import arrays as attribute_arrays
from evenmesh_retriever.backends.segments.files.hashes import HashArray, HashIndex
from evenmesh_retriever.backends.segments.files.manifest import MANIFEST, DenseManifest, SegmentManifest
from evenmesh_retriever.backends.segments.files.records import bounds_of
from evenmesh_retriever.backends.segments.files.segment import ARRAYS, View, ragged
from evenmesh_retriever.backends.segments.files.terms import TermTable
from evenmesh_retriever.domain import IntArray

_BLOCK_ROWS: Final = 16_384
_BLOCK_POSTINGS: Final = 4_000_000

Checkpoint = Callable[[], None]


@dataclass(frozen=True, slots=True, eq=False)
class MergeOrder:
    """Which row of which view becomes which row of the merged segment.

    Attributes:
        views: what is merged.
        source: view of each new row, ``[n]``.
        row: its row there, ``[n]``.
        new_rows: for each view the new row of each of its rows, -1 if it is gone.
    """

    views: Sequence[View]
    source: NDArray[np.int32]
    row: IntArray
    new_rows: Sequence[NDArray[np.int32]]

    @classmethod
    def of(cls, views: Sequence[View]) -> MergeOrder:
        """Return the order of the passages of views by id."""
        runs: list[Iterator[tuple[bytes, int]]] = []
        first = 0
        for view in views:
            known = view.segment.records.ids()
            ids = known if view.alive is None else [known[row] for row in view.rows.tolist()]
            runs.append(zip(ids, range(first, first + len(ids)), strict=True))
            first += len(ids)
        source = np.repeat(np.arange(len(views), dtype=np.int32), [view.num_passages for view in views])
        row = np.concatenate([view.rows for view in views])
        # One by one and not by one sort, which would let no other thread run until it is done.
        order = np.fromiter((place for _, place in heapq.merge(*runs)), dtype=np.int64, count=first)
        source, row = source[order], row[order]
        new_rows = []
        for number, view in enumerate(views):
            mapped = np.full(len(view.segment), -1, dtype=np.int32)
            mine = np.flatnonzero(source == number)
            mapped[row[mine]] = mine
            new_rows.append(mapped)
        return cls(views, source, row, new_rows)

    def __len__(self) -> int:
        return len(self.row)

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of new rows."""
        for begin in range(0, len(self), _BLOCK_ROWS):
            yield begin, min(begin + _BLOCK_ROWS, len(self))

    def gathered(self, of: Sequence[NDArray[Any]], begin: int, end: int) -> NDArray[Any]:
        """Gather values for new rows from one array per view, which has a line for each old row."""
        source, row = self.source[begin:end], self.row[begin:end]
        result = np.empty((end - begin, *of[0].shape[1:]), dtype=of[0].dtype)
        for number, array in enumerate(of):
            mine = source == number
            result[mine] = array[row[mine]]
        return result

    def whole(self, of: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return the same for all new rows."""
        return self.gathered(of, 0, len(self))


def write(folder: Path, plan: MergeOrder, checkpoint: Checkpoint) -> SegmentManifest:
    """Write the merged segment into an empty folder; on disk when it returns.

    It equals a segment built afresh from its passages: rows by id, terms in the order they are first seen.
    """
    segments = [view.segment for view in plan.views]
    with ArrayWriter(folder / ARRAYS, checkpoint) as writer:
        writer.stream("passages.bytes", np.uint8, _passages(plan))
        sizes = plan.whole([segment.records.sizes for segment in segments])
        writer.add("passages.bounds", bounds_of(sizes))
        faults.point("compaction.half-written")
        for name in ("ids", "contents"):
            hashes = plan.whole([_by_row(getattr(segment, name)) for segment in segments])
            for key, array in HashIndex.arrays(name, hashes).items():
                writer.add(key, array)
        for key, array in attribute_arrays(_attributes(plan)).items():
            writer.add(key, array)
        lengths = plan.whole([segment.postings.lengths for segment in segments])
        writer.add("postings.lengths", lengths)
        _postings(writer, plan, folder)
        file = writer.finish()
    manifest = SegmentManifest(
        num_passages=len(plan),
        num_tokens=int(lengths.sum(dtype=np.int64)),
        passage_bytes=int(sizes.sum()),
        analyzer=segments[0].manifest.analyzer,
        file=file,
    )
    durable_files.write(folder / MANIFEST, manifest.serialized())
    faults.point("compaction.written")
    return manifest


def write_vectors(folder: Path, plan: MergeOrder, checkpoint: Checkpoint) -> DenseManifest | None:
    """Write the vectors of the merged segment, if one encoder made those of all the views."""
    parts = [view.dense for view in plan.views if view.dense is not None]
    if len(parts) < len(plan.views) or len({part.manifest.encoder for part in parts}) > 1:
        return None
    vectors = dense.new_vectors(folder, len(plan), parts[0].manifest.encoder.dimension)
    for begin, end in plan.blocks():
        checkpoint()
        vectors[begin:end] = plan.gathered([part.vectors for part in parts], begin, end)
    vectors.flush()
    del vectors
    return dense.finish(folder, parts[0].manifest.encoder, len(plan), lambda _: checkpoint())


def _passages(plan: MergeOrder) -> Iterator[NDArray[np.uint8]]:
    raw = [view.segment.records.raw for view in plan.views]
    for begin, end in plan.blocks():
        pairs = zip(plan.source[begin:end].tolist(), plan.row[begin:end].tolist(), strict=True)
        yield np.frombuffer(b"".join(raw[source](row) for source, row in pairs), dtype=np.uint8)


def _by_row(index: HashIndex) -> HashArray:
    hashes = np.empty(len(index.in_order), dtype=np.uint64)
    hashes[index.in_order] = index.hashes
    return hashes


def _attributes(plan: MergeOrder) -> Entries:
    entries: Entries = {}
    for view, new_rows in zip(plan.views, plan.new_rows, strict=True):
        for entry, rows in view.segment.attributes.entries():
            kept = new_rows[rows]
            kept = kept[kept >= 0]
            if len(kept):
                entries.setdefault(entry, []).append(kept)
    return entries


def _postings(writer: ArrayWriter, plan: MergeOrder, folder: Path) -> None:
    names: dict[bytes, int] = {}
    joint = [
        np.array([names.setdefault(name, len(names)) for name in view.segment.terms.names()], dtype=np.int32)
        for view in plan.views
    ]
    number = np.full(len(names), -1, dtype=np.int32)
    per_row = plan.whole([np.diff(view.segment.postings.row_bounds) for view in plan.views])
    writer.add("postings.row_bounds", np.concatenate([[0], np.cumsum(per_row)]).astype(np.int64))
    with _spool(folder) as spool:
        writer.stream("postings.row_terms", np.int32, _by_passage(plan, per_row, joint, number, spool))
        writer.stream("postings.row_counts", np.uint16, _unspooled(spool))
    seen = np.flatnonzero(number >= 0)
    order = seen[np.argsort(number[seen])]
    every = list(names)
    for key, array in TermTable.arrays(every[one] for one in order.tolist()):
        writer.add(key, array)
    mapped = [number[one] for one in joint]
    frequencies = np.zeros(len(seen), dtype=np.int64)
    with _spool(folder) as spool:
        writer.stream("postings.rows", np.int32, _by_term(plan, mapped, frequencies, spool))
        writer.stream("postings.counts", np.uint16, _unspooled(spool))
    writer.add("postings.bounds", np.concatenate([[0], np.cumsum(frequencies)]).astype(np.int64))


def _by_passage(
    plan: MergeOrder,
    per_row: IntArray,
    joint: Sequence[NDArray[np.int32]],
    number: NDArray[np.int32],
    spool: IO[bytes],
) -> Iterator[NDArray[np.int32]]:
    """Yield the terms of each new row, numbered as they are first seen, which is noted in ``number``."""
    next_number = 0
    for begin, end in plan.blocks():
        sizes = per_row[begin:end]
        starts = np.cumsum(sizes) - sizes
        terms = np.empty(int(sizes.sum()), dtype=np.int32)
        counts = np.empty(len(terms), dtype=np.uint16)
        for source, view in enumerate(plan.views):
            mine = np.flatnonzero(plan.source[begin:end] == source)
            postings, rows = view.segment.postings, plan.row[begin:end][mine]
            places = ragged(postings.row_bounds[rows], postings.row_bounds[rows + 1])
            targets = ragged(starts[mine], starts[mine] + sizes[mine])
            terms[targets] = joint[source][postings.row_terms[places]]
            counts[targets] = postings.row_counts[places]
        found, first = np.unique(terms[number[terms] < 0], return_index=True)
        new = found[np.argsort(first)]
        number[new] = next_number + np.arange(len(new), dtype=np.int32)
        next_number += len(new)
        counts.tofile(spool)
        yield number[terms]


def _by_term(
    plan: MergeOrder, mapped: Sequence[NDArray[np.int32]], frequencies: IntArray, spool: IO[bytes]
) -> Iterator[NDArray[np.int32]]:
    """Yield the new rows of each new term, ascending; how many they are is noted in ``frequencies``."""
    ordered, sizes = [], np.zeros(len(frequencies), dtype=np.int64)
    for view, new in zip(plan.views, mapped, strict=True):
        kept = np.flatnonzero(new >= 0)
        old = kept[np.argsort(new[kept])]
        ordered.append((old, new[old]))
        sizes[new[old]] += np.diff(view.segment.postings.bounds)[old]
    reached = np.cumsum(sizes)
    begin = 0
    while begin < len(frequencies):
        before = int(reached[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(reached, before + _BLOCK_POSTINGS, side="right")))
        keys, counts = [], []
        for view, new_rows, (old, new) in zip(plan.views, plan.new_rows, ordered, strict=True):
            low, high = np.searchsorted(new, [begin, end])
            postings, terms = view.segment.postings, old[low:high]
            begins, ends = postings.bounds[terms], postings.bounds[terms + 1]
            places = ragged(begins, ends)
            rows = new_rows[postings.rows[places]]
            there = rows >= 0
            keys.append((np.repeat(new[low:high].astype(np.int64) << 32, ends - begins) | rows)[there])
            counts.append(postings.counts[places][there])
        every = np.concatenate(keys)
        # A few sorted runs, which a stable sort only has to merge.
        order = np.argsort(every, kind="stable")
        every = every[order]
        frequencies[begin:end] = np.bincount((every >> 32) - begin, minlength=end - begin)
        np.concatenate(counts)[order].tofile(spool)
        yield (every & 0xFFFFFFFF).astype(np.int32)
        begin = end


@contextmanager
def _spool(folder: Path) -> Iterator[IO[bytes]]:
    with TemporaryFile(dir=folder) as file:
        yield file


def _unspooled(spool: IO[bytes]) -> Iterator[NDArray[np.uint16]]:
    spool.seek(0)
    while True:
        piece = np.fromfile(spool, dtype=np.uint16, count=_BLOCK_POSTINGS)
        if not len(piece):
            return
        yield piece
