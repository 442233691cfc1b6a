"""Read a segment, and view it as one version has it: without deleted passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from sys import getsizeof
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evenmesh_kit.compute.tenant_cache import TenantCache
from evenmesh_kit.security import caller as callers
from evenmesh_retriever.backends.bm25.postings import Postings
from evenmesh_retriever.backends.segments.files import manifest as manifests
from evenmesh_retriever.backends.segments.files.arrays import opened
from evenmesh_retriever.backends.segments.files.attributes import AttributeIndex
from evenmesh_retriever.backends.segments.files.dense import DensePart
from evenmesh_retriever.backends.segments.files.hashes import HashArray, HashIndex
from evenmesh_retriever.backends.segments.files.manifest import MANIFEST, Corrupt, SegmentManifest
from evenmesh_retriever.backends.segments.files.records import Records
from evenmesh_retriever.backends.segments.files.terms import TermTable
from evenmesh_retriever.domain import IntArray, Passage

ARRAYS: Final = "arrays.bin"
"""The file of a segment's arrays, beside its manifest."""
POSTINGS: Final = ("lengths", "row_bounds", "row_terms", "row_counts", "bounds", "rows", "counts")
"""Fields of :class:`Postings` that are arrays, ``postings.<field>`` in the file."""

_KEPT_BYTES: Final = 64 * 2**20
_numbers: Final = count()
_passages: Final[TenantCache[Passage]] = TenantCache(_KEPT_BYTES, share=1.0)
"""Passages of all segments, by tenant, number of the segment and row."""

BoolArray = NDArray[np.bool_]


class Segment:
    """Passages by ascending id with everything that finds them, all of it memory-mapped.

    Args:
        folder: the segment's folder; it may be renamed or removed while the segment is open.
        manifest: its manifest.

    Raises:
        Corrupt: the file of its arrays is missing or of another size.
    """

    def __init__(self, folder: Path, manifest: SegmentManifest) -> None:
        path = folder / ARRAYS
        manifests.check_size(path, manifest.file.bytes)
        try:
            arrays = opened(path, manifest.file)
            self.name = folder.name
            self.manifest = manifest
            self.records = Records(arrays["passages.bytes"], arrays["passages.bounds"])
            self.terms = TermTable(arrays)
            self.postings = Postings(self.terms, *(arrays[f"postings.{field}"] for field in POSTINGS))
            self.attributes = AttributeIndex(arrays)
            self.ids = HashIndex.of(arrays, "ids")
            self.contents = HashIndex.of(arrays, "contents")
        except (OSError, ValueError, KeyError) as error:
            raise Corrupt(f"{path} does not hold the arrays of its manifest: {error}") from None
        self._number = next(_numbers)

    @classmethod
    def open(cls, folder: Path) -> Segment:
        """Open a segment after checking its manifest and the size of its file; the bytes are not read.

        Raises:
            Corrupt: either is not as it was written.
        """
        return cls(folder, manifests.read(folder / MANIFEST, folder.name, SegmentManifest))

    def __len__(self) -> int:
        return self.manifest.num_passages

    def passage(self, row: int) -> Passage:
        """Return the passage of a row, which is kept: an audit asks for the same few hundred many times."""
        tenant, key = callers.current().tenant, (self._number, row)
        found = _passages.get(tenant, key)
        if found is None:
            found = self.records.passage(row)
            _passages.put(tenant, key, found, _memory_of(found))
        return found

    def rows_of(self, ids: Sequence[bytes], hashes: HashArray) -> IntArray:
        """Return the row of each id, ``[n]``, by the ids' hashes; -1 where there is none."""
        rows = np.full(len(ids), -1, dtype=np.int64)
        for position, row in self.ids.candidates(hashes):
            if self.records.id(row) == ids[position]:
                rows[position] = row
        return rows


def _memory_of(passage: Passage) -> int:
    """Return the memory that a passage takes, about. Bytes."""
    attributes = chain.from_iterable(passage.attributes.items())
    return sum(map(getsizeof, (passage.id, passage.title, passage.text, *attributes)))


class Tombstones:
    """The rows of a segment that are not there any more, and what they take with them.

    Args:
        segment: the segment.
        dead: whether each row is gone, ``[n]``; not changed.
    """

    def __init__(self, segment: Segment, dead: BoolArray) -> None:
        self._segment = segment
        self.dead = dead
        self.alive: BoolArray = ~dead
        self.alive.flags.writeable = False
        self.rows: IntArray = np.flatnonzero(dead)

    def __len__(self) -> int:
        return len(self.rows)

    def and_also(self, rows: IntArray) -> Tombstones:
        """These and some more; costs what the new ones hold, if the sums of the old were asked for."""
        dead = self.dead.copy()
        dead[rows] = True
        more = Tombstones(self._segment, dead)
        if "_terms" in self.__dict__:
            numbers, counts = self._terms
            new_numbers, new_counts = _terms_of(self._segment.postings, rows)
            both = np.concatenate([numbers, new_numbers])
            merged, places = np.unique(both, return_inverse=True)
            sums = np.bincount(places, weights=np.concatenate([counts, new_counts])).astype(np.int64)
            more.__dict__["_terms"] = (merged, sums)
        return more

    @cached_property
    def num_tokens(self) -> int:
        """Tokens of the rows."""
        return int(self._segment.postings.lengths[self.rows].sum(dtype=np.int64))

    @cached_property
    def passage_bytes(self) -> int:
        """Bytes of the rows' passages."""
        return self._segment.records.raw_bytes(self.rows)

    def frequencies(self, numbers: IntArray) -> IntArray:
        """Return how many of the rows each of some terms is in, ``[t]``."""
        known, counts = self._terms
        if not len(known):
            return np.zeros(len(numbers), dtype=np.int64)
        places = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        found: IntArray = np.where(known[places] == numbers, counts[places], 0)
        return found

    @cached_property
    def _terms(self) -> tuple[IntArray, IntArray]:
        return _terms_of(self._segment.postings, self.rows)


@dataclass(frozen=True, eq=False)
class View:
    """A segment as one version has it."""

    segment: Segment
    tombstones: Tombstones | None
    """None while all of it is there."""
    dense: DensePart | None
    """The vectors of its passages; None until they are embedded."""

    @property
    def alive(self) -> BoolArray | None:
        """Whether each row is there, ``[n]``; None if all are."""
        return self.tombstones.alive if self.tombstones else None

    @property
    def is_there(self) -> BoolArray:
        """Whether each row is there, ``[n]``."""
        return np.ones(len(self.segment), dtype=np.bool_) if self.alive is None else self.alive

    @property
    def num_dead(self) -> int:
        """Rows that are gone."""
        return len(self.tombstones) if self.tombstones else 0

    @property
    def num_passages(self) -> int:
        """Passages that are there."""
        return len(self.segment) - self.num_dead

    @property
    def num_tokens(self) -> int:
        """Tokens of the passages that are there."""
        return self.segment.manifest.num_tokens - (self.tombstones.num_tokens if self.tombstones else 0)

    @property
    def passage_bytes(self) -> int:
        """Bytes of the passages that are there: ids, titles, texts and attributes."""
        return self.segment.manifest.passage_bytes - (self.tombstones.passage_bytes if self.tombstones else 0)

    @property
    def rows(self) -> IntArray:
        """Rows that are there, ascending."""
        return np.arange(len(self.segment)) if self.alive is None else np.flatnonzero(self.alive)

    def rows_of(self, ids: Sequence[bytes], hashes: HashArray) -> IntArray:
        """Return the row of each id, ``[n]``, by the ids' hashes; -1 where there is none any more."""
        rows = self.segment.rows_of(ids, hashes)
        if self.tombstones is not None:
            rows[self.tombstones.dead[rows] & (rows >= 0)] = -1
        return rows

    def frequencies(self, numbers: IntArray) -> IntArray:
        """Return how many passages that are there each of some terms is in, ``[t]``."""
        bounds = self.segment.postings.bounds
        found: IntArray = bounds[numbers + 1] - bounds[numbers]
        return found - self.tombstones.frequencies(numbers) if self.tombstones else found

    def without(self, rows: IntArray) -> View:
        """Return the view without some rows too."""
        if not len(rows):
            return self
        old = self.tombstones or Tombstones(self.segment, np.zeros(len(self.segment), dtype=np.bool_))
        return View(self.segment, old.and_also(rows), self.dense)


def _terms_of(postings: Postings, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Return the terms of some rows, ascending, and how many of the rows each is in."""
    bounds = postings.row_bounds
    begins, ends = bounds[rows], bounds[rows + 1]
    numbers = postings.row_terms[ragged(begins, ends)]
    if len(numbers) < len(postings.terms) // 8:
        found, counts = np.unique(numbers.astype(np.int64), return_counts=True)
        return found, counts.astype(np.int64)
    per_term = np.bincount(numbers, minlength=len(postings.terms))
    there = np.flatnonzero(per_term)
    return there, per_term[there]


def ragged(begins: IntArray, ends: IntArray) -> IntArray:
    """Return all numbers of some ranges, one range after the other."""
    sizes = ends - begins
    total = int(sizes.sum())
    starts = np.cumsum(sizes) - sizes
    return np.repeat(begins - starts, sizes) + np.arange(total)
