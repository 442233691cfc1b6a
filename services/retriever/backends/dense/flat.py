"""Exact search by inner product: FAISS's flat scan, straight over memory-mapped vectors."""

from __future__ import annotations

from typing import Final

import faiss
import numpy as np

from services.retriever.backends.selection import best, ordered
from services.retriever.domain import FloatArray, Scored, VectorArray

# FAISS hands batches of at least this many query components to BLAS: four times as fast from eight queries of
# 384 dimensions on, and three to six times as slow for a single one, which stays below.
_BLAS_FROM: Final = 3_000
_MARGIN: Final = 16
# More than float32 sums of products of unit vectors are ever off.
_ROUNDING: Final = 1e-5


class FlatIndex:
    """All vectors, compared one by one.

    The scan finds candidates in float32; their scores are then worked out in float64, one by one in one fixed
    order, so that a score depends on nothing but the two vectors and equal vectors have equal scores.

    Args:
        vectors: ``[n, d]``; not copied.
        threads: threads of a search, [1, inf); more than there are free cores is much slower than one.
    """

    def __init__(self, vectors: VectorArray, *, threads: int = 1) -> None:
        self._vectors = vectors
        self._threads = threads
        faiss.cvar.distance_compute_blas_threshold = _BLAS_FROM

    def search(self, vector: VectorArray, n: int) -> Scored:
        """The ``min(n, len(vectors))`` of largest inner product with ``vector``, equal ones by row."""
        size = len(self._vectors)
        wanted = min(n, size)
        scanned = min(wanted + _MARGIN, size)
        if not scanned:
            return Scored(np.empty(0, dtype=np.int64), np.empty(0))
        # A setting of the calling thread.
        faiss.omp_set_num_threads(self._threads)
        similarities, found = faiss.knn(
            vector[None, :], self._vectors, scanned, metric=faiss.METRIC_INNER_PRODUCT
        )
        candidates = ordered(found[0], products(self._vectors[found[0]], vector))
        if scanned < size and candidates.scores[wanted - 1] - similarities[0, -1] < _ROUNDING:
            # Something as good may lie beyond what was fetched: equal vectors, most likely.
            rough = self._vectors @ vector
            near = np.flatnonzero(rough >= candidates.scores[wanted - 1] - _ROUNDING)
            candidates = ordered(near, products(self._vectors[near], vector))
        return Scored(candidates.rows[:wanted], candidates.scores[:wanted])


def rank(vectors: VectorArray, vector: VectorArray) -> Scored:
    """All of the vectors by inner product with ``vector``, equal ones by row."""
    return best(products(vectors, vector), len(vectors))


def products(vectors: VectorArray, vector: VectorArray) -> FloatArray:
    """Inner products in float64, ``[n]``: each row summed alone and in one order, unlike in BLAS."""
    summed: FloatArray = (vectors.astype(np.float64) * vector.astype(np.float64)).sum(axis=1)
    return summed
