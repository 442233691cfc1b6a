"""Select the best of many scores; equal scores by ascending row."""

from __future__ import annotations

import numpy as np

from evenmesh_retriever.domain import FloatArray, IntArray, Scored


def best(scores: FloatArray, n: int) -> Scored:
    """Return the ``min(n, len(scores))`` largest scores, descending, equal ones by ascending row."""
    if n < len(scores):
        last = np.partition(scores, len(scores) - n)[len(scores) - n]
        above = np.flatnonzero(scores > last)
        # Ascending rows: of those equal to the last score, the first ones stay.
        equal = np.flatnonzero(scores == last)[: n - len(above)]
        rows = np.concatenate([above, equal])
    else:
        rows = np.arange(len(scores))
    return ordered(rows, scores[rows])


def ordered(rows: IntArray, scores: FloatArray) -> Scored:
    """Return rows and their scores, sorted: descending, equal scores by ascending row."""
    order = np.lexsort((rows, -scores))
    return Scored(rows[order], scores[order])
