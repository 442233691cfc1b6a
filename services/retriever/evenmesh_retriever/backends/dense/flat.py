"""Search exactly by inner product with FAISS's flat scan over memory-mapped vectors."""

from __future__ import annotations

from typing import Any, Final

import faiss
import numpy as np
from numpy.typing import NDArray

from evenmesh_retriever.backends.dense.rescoring import best_of, products, stacked
from evenmesh_retriever.backends.selection import best
from evenmesh_retriever.domain import FloatArray, IntArray, Scored, VectorArray

# FAISS hands batches of at least this many query components to BLAS: four times as fast from eight queries of
# 384 dimensions on, and three to six times as slow for a single one, which stays below.
_BLAS_FROM: Final = 3_000
_MARGIN: Final = 16
# More than float32 sums of products of unit vectors are ever off.
_ROUNDING: Final = 1e-5
# Below this share of rows that may be found, they are copied and searched by themselves.
_COPIED: Final = 0.1


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

    def search(
        self, queries: VectorArray, n: int, *, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[IntArray, FloatArray]:
        """For each query the ``n`` of largest inner product, exactly, equal ones by ascending row.

        Args:
            queries: ``[q, d]``.
            n: how many, from 1.
            allowed: whether each vector may be found, ``[len(vectors)]``; None: all may.

        Returns:
            Rows ``[q, m]`` and scores ``[q, m]``, where m is n or as many as there are.
        """
        if allowed is None:
            return self._search(queries, min(n, len(self._vectors)), None)
        there = int(np.count_nonzero(allowed))
        if there < _COPIED * len(allowed):
            rows = np.flatnonzero(allowed)
            places, scores = FlatIndex(self._vectors[rows], threads=self._threads).search(queries, n)
            return rows[places], scores
        return self._search(queries, min(n, there), allowed)

    def _search(
        self, queries: VectorArray, wanted: int, allowed: NDArray[np.bool_] | None
    ) -> tuple[IntArray, FloatArray]:
        size = len(self._vectors)
        fetched = min(wanted + _MARGIN, size)
        if not wanted or not len(queries):
            return np.empty((len(queries), 0), dtype=np.int64), np.empty((len(queries), 0))
        # A setting of the calling thread.
        faiss.omp_set_num_threads(self._threads)
        similarities, rows = _scanned(queries, self._vectors, fetched, allowed)
        found = []
        for query, near, last in zip(queries, rows, similarities[:, -1], strict=True):
            ranked, scores = best_of(self._vectors, near, query, wanted)
            if near[-1] >= 0 and fetched < size and scores[-1] - last < _ROUNDING:
                # Something as good may lie beyond what was fetched: equal vectors, most likely.
                rough = self._vectors @ query
                if allowed is not None:
                    rough[~allowed] = -np.inf
                close = np.flatnonzero(rough >= scores[-1] - _ROUNDING)
                ranked, scores = best_of(self._vectors, close, query, wanted)
            found.append((ranked, scores))
        return stacked(found)


def _scanned(
    queries: VectorArray, vectors: VectorArray, n: int, allowed: NDArray[np.bool_] | None
) -> tuple[VectorArray, IntArray]:
    """Return similarities and rows by FAISS, ``[q, n]``; row -1 where there are no more."""
    asked = np.ascontiguousarray(queries, dtype=np.float32)
    if allowed is None:
        similarities, rows = faiss.knn(asked, vectors, n, metric=faiss.METRIC_INNER_PRODUCT)
        return similarities, rows
    similarities = np.empty((len(asked), n), dtype=np.float32)
    rows = np.empty((len(asked), n), dtype=np.int64)
    faiss.knn_inner_product(
        faiss.swig_ptr(asked),
        faiss.swig_ptr(np.ascontiguousarray(vectors)),
        vectors.shape[1],
        len(asked),
        len(vectors),
        n,
        faiss.swig_ptr(similarities),
        faiss.swig_ptr(rows),
        selector(allowed),
    )
    return similarities, rows


def selector(allowed: NDArray[np.bool_]) -> Any:
    """Return what FAISS takes for the rows that may be found."""
    return faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))  # type: ignore[call-arg, arg-type]


def rank(vectors: VectorArray, vector: VectorArray) -> Scored:
    """Return all of the vectors by inner product with ``vector``, equal ones by row."""
    return best(products(vectors, vector), len(vectors))
