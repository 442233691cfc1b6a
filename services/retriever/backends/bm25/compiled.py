"""The loops of :mod:`.kernel`, compiled: the same arithmetic in the same order, so the same scores."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def accumulate(numbers, slots, dense, bounds, rows, counts, idf, norms, gain, scores):  # type: ignore[no-untyped-def]
    """Adds to ``scores`` what each of the query's terms gives each passage."""
    for number in numbers:
        slot = slots[number]
        if slot >= 0:
            row = dense[slot]
            for i in range(len(scores)):
                scores[i] += row[i]
        else:
            weight = idf[number]
            for j in range(bounds[number], bounds[number + 1]):
                passage = rows[j]
                count = np.float64(counts[j])
                scores[passage] += weight * (count * gain / (count + norms[passage]))


@njit(cache=True, nogil=True)
def select(scores, n):  # type: ignore[no-untyped-def]
    """The n largest scores with the lowest rows among equal ones, in no order: (rows, scores).

    A heap of the n best so far, the worst on top; of equal scores the higher row is the worse. Rows come in
    ascending order, so each is worse than all before it that it equals.
    """
    kept = np.empty(n, np.float64)
    rows = np.empty(n, np.int64)
    size = 0
    for i in range(len(scores)):
        score = scores[i]
        if size < n:
            place = size
            size += 1
            while place > 0:
                above = (place - 1) >> 1
                if kept[above] < score:
                    break
                kept[place] = kept[above]
                rows[place] = rows[above]
                place = above
        elif score > kept[0]:
            place = 0
            while True:
                below = 2 * place + 1
                if below >= n:
                    break
                other = below + 1
                if other < n and (
                    kept[other] < kept[below] or (kept[other] == kept[below] and rows[other] > rows[below])
                ):
                    below = other
                if kept[below] >= score:
                    break
                kept[place] = kept[below]
                rows[place] = rows[below]
                place = below
        else:
            continue
        kept[place] = score
        rows[place] = i
    return rows, kept
