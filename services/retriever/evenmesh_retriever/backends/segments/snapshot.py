"""Read one version of a collection."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from math import inf
from threading import Lock
from time import monotonic
from typing import Final
from weakref import ref

import numpy as np

from evenmesh.wire.errors import InvalidField, Unavailable
from evenmesh_retriever.backends.segments.files.hashes import hashes_of
from evenmesh_retriever.backends.segments.files.manifest import VersionManifest
from evenmesh_retriever.backends.segments.files.segment import BoolArray, View
from evenmesh_retriever.domain import AnyOf, CollectionInfo, Filter, IntArray, Passage

_MASKS_KEPT: Final = 8


class SegmentSnapshot:
    """A version: segments one after the other, each without the passages that are gone.

    A passage's row is the segment's offset and its row there, so within a segment rows follow ids and across
    segments they do not.

    Args:
        manifest: the version's manifest.
        views: its segments.
        info: the collection at this version.
    """

    def __init__(self, manifest: VersionManifest, views: Sequence[View], info: CollectionInfo) -> None:
        self.manifest = manifest
        self.views = tuple(views)
        self.offsets: IntArray = np.cumsum([0] + [len(view.segment) for view in self.views])
        """Row at which each view begins, and the end, ``[views + 1]``."""
        self.info = info
        self.ends = inf
        """When its files may go, on the clock of ``time.monotonic``; its passages are read no more then."""
        self._size = sum(view.num_passages for view in self.views)
        self._masks: OrderedDict[bytes, list[BoolArray]] = OrderedDict()
        self._guard = Lock()

    def __len__(self) -> int:
        return self._size

    @cached_property
    def num_tokens(self) -> int:
        """Tokens of all passages."""
        return sum(view.num_tokens for view in self.views)

    @cached_property
    def passage_bytes(self) -> int:
        """Bytes of all passages."""
        return sum(view.passage_bytes for view in self.views)

    @cached_property
    def frequencies(self) -> IntArray:
        """Passages that each term is in, for every term of the collection; from one segment, in its order.

        Terms of different segments are matched by 64 bits of their hashes: of a million terms, two are taken
        for one with a probability of 3e-8.
        """
        if not self.views:
            return np.empty(0, dtype=np.int64)
        per_view = [view.frequencies(np.arange(len(view.segment.terms))) for view in self.views]
        if len(per_view) == 1:
            frequencies = per_view[0]
        else:
            terms = [view.segment.terms for view in self.views]
            _, places = np.unique(np.concatenate([one.hashes for one in terms]), return_inverse=True)
            sorted_alike = [found[one.by_hash] for found, one in zip(per_view, terms, strict=True)]
            frequencies = np.bincount(places, weights=np.concatenate(sorted_alike)).astype(np.int64)
        return frequencies[frequencies > 0]

    def passages(self, rows: Iterable[int]) -> list[Passage]:
        """Return the passages of some rows.

        Raises:
            Unavailable: the version was replaced too long ago.
        """
        self._check_time()
        if len(self.views) == 1:
            passage = self.views[0].segment.passage
            return [passage(row) for row in rows]
        wanted = list(rows)
        places = (np.searchsorted(self.offsets, wanted, side="right") - 1).tolist()
        offsets = self.offsets.tolist()
        return [
            self.views[place].segment.passage(row - offsets[place])
            for place, row in zip(places, wanted, strict=True)
        ]

    def passages_of(self, ids: Sequence[str]) -> list[Passage]:
        """Return the passages of some ids, each given once; unknown ids are left out.

        Raises:
            Unavailable: the version was replaced too long ago.
        """
        self._check_time()
        keys = [one.encode() for one in ids]
        hashes = hashes_of(keys)
        found = []
        for view in self.views:
            rows = view.rows_of(keys, hashes)
            found += [view.segment.passage(row) for row in rows[rows >= 0].tolist()]
        return found

    def _check_time(self) -> None:
        if monotonic() > self.ends:
            raise Unavailable(
                "VERSION_GONE",
                f"version {self.info.version} of collection {self.info.name!r} was replaced while it was "
                "read, too long ago: read again",
            )

    def id(self, row: int) -> bytes:
        """Return the id of a row, in UTF-8; as bytes ids sort as they do as text."""
        place = int(np.searchsorted(self.offsets, row, side="right")) - 1
        return self.views[place].segment.records.id(row - int(self.offsets[place]))

    def rows(self, prefix: str = "") -> IntArray:
        """Return rows of the passages whose ids begin with ``prefix``, by ascending id."""
        return np.fromiter(self._in_order(prefix), dtype=np.int64)

    def pages(self, size: int, prefix: str = "") -> Iterator[list[Passage]]:
        """Yield the passages whose ids begin with ``prefix`` by ascending id, ``size`` at a time.

        Raises:
            Unavailable: the version was replaced too long ago.
        """
        self._check_time()
        rows = self._in_order(prefix)
        while some := list(islice(rows, size)):
            yield self.passages(some)
            self._check_time()  # the ids of the next ones are read too

    def _in_order(self, prefix: str) -> Iterator[int]:
        """Yield the rows of :meth:`rows`. One sort would let no other thread run until all are sorted."""
        runs = []
        for view, offset in zip(self.views, self.offsets.tolist(), strict=False):
            part = _beginning_with(view, prefix.encode())
            runs.append(zip(map(view.segment.records.id, part), part + offset, strict=True))
        return (int(row) for _, row in heapq.merge(*runs))

    def by_id(self, rows: IntArray) -> IntArray:
        """Return some rows, by ascending passage id."""
        if len(self.views) < 2:
            return np.sort(rows)
        return np.array(sorted(rows.tolist(), key=self.id), dtype=np.int64)

    def places(self, rows: IntArray) -> IntArray:
        """Return numbers that ascend with the passage ids of rows; cheap for all rows of a collection."""
        return rows if len(self.views) < 2 else self._places[rows]

    @cached_property
    def _places(self) -> IntArray:
        """Place of each row among all by id, ``[rows]``; 0 where the passage is gone."""
        places = np.zeros(int(self.offsets[-1]), dtype=np.int64)
        rows = self.rows()
        places[rows] = np.arange(len(rows))
        return places

    def allowed(self, where: Filter | None) -> Sequence[BoolArray | None]:
        """For each view whether each of its rows may be found, ``[n]``; None if all may.

        Raises:
            InvalidField: no passage has an attribute of the filter; the field is ``filter.conditions[i]…``.
        """
        if where is None:
            return [view.alive for view in self.views]
        key = _key(where)
        with self._guard:
            if key in self._masks:
                self._masks.move_to_end(key)
                return self._masks[key]
        self._check(where)
        masks = [_mask(view, where) for view in self.views]
        with self._guard:
            self._masks[key] = masks
            while len(self._masks) > _MASKS_KEPT:
                self._masks.popitem(last=False)
        return masks

    def _check(self, where: Filter) -> None:
        for number, condition in enumerate(where.conditions):
            if not any(_has(view, condition.attribute) for view in self.views):
                raise InvalidField(
                    f"filter.conditions[{number}].attribute",
                    f"no passage of collection {self.info.name!r} has an attribute {condition.attribute!r}",
                )


def _key(where: Filter) -> bytes:
    """Return what stands for a filter where its masks are kept: it may name 16 MiB of values itself."""
    digest = blake2b(digest_size=16)
    for one in where.conditions:
        match one.allowed:
            case AnyOf(values):
                said = [one.attribute, "", *sorted(values)]
            case allowed:
                said = [one.attribute, repr(allowed)]
        for data in (text.encode() for text in said):
            digest.update(b"%d:" % len(data))
            digest.update(data)
        digest.update(b";")
    return digest.digest()


def _mask(view: View, where: Filter) -> BoolArray:
    mask = np.ones(len(view.segment), dtype=np.bool_) if view.alive is None else view.alive.copy()
    for condition in where.conditions:
        met = np.zeros(len(view.segment), dtype=np.bool_)
        met[view.segment.attributes.rows_meeting(condition)] = True
        mask &= met
    mask.flags.writeable = False
    return mask


def _has(view: View, attribute: str) -> bool:
    rows = view.segment.attributes.rows_with(attribute)
    return bool(len(rows)) if view.alive is None else bool(view.alive[rows].any())


class OfVersion:
    """What is made of a version and kept for as long as others hold it, without holding it.

    Such things are kept in dictionaries whose keys are weak. One that held its version would hold its own
    key, and every version that was ever served would stay open.

    Args:
        snapshot: the version; who uses what is made of it holds it meanwhile.
    """

    def __init__(self, snapshot: SegmentSnapshot) -> None:
        self._version = ref(snapshot)

    @property
    def _snapshot(self) -> SegmentSnapshot:
        snapshot = self._version()
        if snapshot is None:
            raise ReferenceError("the version was removed while it was read; read again")
        return snapshot


def _beginning_with(view: View, prefix: bytes) -> IntArray:
    """Return the rows of a view whose ids begin with ``prefix``; within a segment rows follow ids."""
    if not prefix:
        return view.rows
    every = range(len(view.segment))
    first = bisect_left(every, prefix, key=view.segment.records.id)
    # No byte of UTF-8 is 255: this comes after all ids with the prefix, and before all other greater ones.
    after = bisect_left(every, prefix + b"\xff", lo=first, key=view.segment.records.id)
    rows = view.rows
    low, high = np.searchsorted(rows, (first, after)).tolist()
    return rows[low:high]
