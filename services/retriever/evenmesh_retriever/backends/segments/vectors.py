"""Search the vectors of segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from evenmesh_retriever.backends.segments.selection import gathered, merged
from evenmesh_retriever.backends.segments.snapshot import OfVersion, SegmentSnapshot
from evenmesh_retriever.domain import Filter, Scored, Unranked, VectorArray
from evenmesh_retriever.ports import Snapshot

if TYPE_CHECKING:
    from evenmesh_retriever.backends.dense.build import DenseIndex
    from evenmesh_retriever.backends.dense.gpu import GpuOwner
    from evenmesh_retriever.backends.segments.files.dense import DensePart


def index(
    snapshot: Snapshot, fingerprint: str, *, gpu: GpuIndexCache | None = None
) -> SegmentedVectors | None:
    """Return the index of a version's vectors by the encoder of that fingerprint; None if there are none.

    With a GPU, what fits there is searched there.
    """
    if not isinstance(snapshot, SegmentSnapshot):
        return None
    parts = [view.dense for view in snapshot.views]
    indexes = [
        (gpu.index(part) if gpu else part.index)
        if part and part.manifest.encoder.fingerprint == fingerprint
        else None
        for part in parts
    ]
    if indexes and all(one is None for one in indexes):
        return None
    return SegmentedVectors(snapshot, indexes)


class GpuIndexCache:
    """The vectors of segments on a GPU, each copied there once for as long as the segment is open.

    Args:
        owner: the GPU.
    """

    def __init__(self, owner: GpuOwner) -> None:
        self._owner = owner
        self._there: WeakKeyDictionary[DensePart, DenseIndex] = WeakKeyDictionary()

    def index(self, part: DensePart) -> DenseIndex:
        """Return the index of some vectors: on the GPU if there is room, else the one built on the CPU."""
        found = self._there.get(part)
        if found is None:
            from evenmesh_retriever.backends.dense.build import on_gpu

            found = self._there[part] = on_gpu(self._owner, part.vectors) or part.index
        return found


class SegmentedVectors(OfVersion):
    """The vectors of one version.

    Args:
        snapshot: the version.
        indexes: of the vectors of each of its segments; None where they are still to be made.
    """

    def __init__(self, snapshot: SegmentSnapshot, indexes: Sequence[DenseIndex | None]) -> None:
        super().__init__(snapshot)
        self._indexes = indexes

    def search(self, vector: VectorArray, n: int, where: Filter | None = None) -> Scored:
        """Return the best ``n`` of the allowed passages with a vector; equal scores by ascending id.

        Raises:
            InvalidField: no passage has an attribute of the filter.
        """
        found = []
        for index, mask in zip(self._indexes, self._snapshot.allowed(where), strict=True):
            if index is None:
                found.append(Scored(np.empty(0, dtype=np.int64), np.empty(0)))
            else:
                rows, scores = index.search(vector[None, :], n, allowed=mask)
                there = rows[0] >= 0
                found.append(Scored(rows[0][there], scores[0][there]))
        return merged(found, self._snapshot.offsets, n, self._snapshot.id)

    def scores(self, vector: VectorArray, where: Filter | None = None) -> Unranked:
        """Return all of the passages that may be found and have a vector, from the vectors themselves.

        Raises:
            InvalidField: no passage has an attribute of the filter.
        """
        from evenmesh_retriever.backends.dense.rescoring import products

        scores = [
            products(view.dense.vectors, vector) if index is not None and view.dense is not None else None
            for view, index in zip(self._snapshot.views, self._indexes, strict=True)
        ]
        return gathered(scores, self._snapshot.allowed(where), self._snapshot.offsets)
