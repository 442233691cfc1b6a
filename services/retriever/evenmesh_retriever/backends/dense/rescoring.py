"""Compute exact scores of candidates, whatever found them."""

from __future__ import annotations

import numpy as np

from evenmesh_retriever.domain import FloatArray, IntArray, VectorArray

ROUNDING = 2e-5
"""More than two float32 sums of products of unit vectors are ever off together."""
# Numbers in float64 that are worked on at a time: as many as stay near the processor.
_CELLS = 2**18


def products(vectors: VectorArray, vector: VectorArray) -> FloatArray:
    """Inner products in float64, ``[n]``: each row summed alone and in one order, unlike in BLAS.

    So a score depends on nothing but the two vectors, and equal vectors have equal scores.
    """
    query = vector.astype(np.float64)
    size = len(vectors)
    found = np.empty(size)
    rows = min(size, max(1, _CELLS // max(1, len(vector))))
    wide = np.empty((rows, len(vector)))
    for begin in range(0, size, max(1, rows)):
        end = min(begin + rows, size)
        part = wide[: end - begin]
        part[:] = vectors[begin:end]
        np.einsum("ij,j->i", part, query, out=found[begin:end])
    return found


def best_of(vectors: VectorArray, rows: IntArray, vector: VectorArray, n: int) -> tuple[IntArray, FloatArray]:
    """Return the best ``n`` of some rows by exact score, equal ones by ascending row; negative rows are none.

    Vectors have length 1, or at most a few times that.
    """
    there = rows[rows >= 0]
    near = vectors[there]
    if len(there) > 2 * n:  # in float32 first: only what may be among the best is worked out exactly
        rough = near @ vector
        bar = np.partition(rough, len(rough) - n)[len(rough) - n] - ROUNDING
        there, near = there[rough >= bar], near[rough >= bar]
    scores = products(near, vector)
    order = np.lexsort((there, -scores))[:n]
    return there[order], scores[order]


def stacked(found: list[tuple[IntArray, FloatArray]]) -> tuple[IntArray, FloatArray]:
    """Several queries' rows and scores, ``[q, m]``: where one has fewer, row -1 and score -inf."""
    width = max((len(rows) for rows, _ in found), default=0)
    all_rows = np.full((len(found), width), -1, dtype=np.int64)
    all_scores = np.full((len(found), width), -np.inf)
    for place, (rows, scores) in enumerate(found):
        all_rows[place, : len(rows)] = rows
        all_scores[place, : len(scores)] = scores
    return all_rows, all_scores
