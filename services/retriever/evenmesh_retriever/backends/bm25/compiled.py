"""Compile the loops of :mod:`.kernel`: the same arithmetic in the same order, so the same scores.

Indices are unsigned: signed ones may be negative, and looking out for that takes a third of the time.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit, uint64

# Rows that are added up together: 256 KiB of sums, which stay near the processor.
_BLOCK: Final = 32_768
_CHUNK: Final = 16


@njit(cache=True, nogil=True)
def _worth(count, norm, numbers):  # type: ignore[no-untyped-def]
    """Return what a large count is worth, as :meth:`Weighting.parts` has it."""
    gain, absent, k1, lift = numbers[0], numbers[1], numbers[2], numbers[3]
    if lift > 0.0:
        relative = count / norm
        return count * gain * (relative + lift) / (k1 + relative + lift)
    return absent + count * gain / (count + norm)


@njit(cache=True, nogil=True)
def _add(begin, end, start, weight, rows, values, lengths, table, norms, numbers, sums):  # type: ignore[no-untyped-def]
    """Add what postings of one term give; they are impacts where ``lengths`` is None, known when compiled."""
    if lengths is None:
        _add_impacts(begin, end, start, weight, rows, values, sums)
    else:
        _add_counts(begin, end, start, weight, rows, values, lengths, table, norms, numbers, sums)


@njit(cache=True, nogil=True)
def _add_counts(begin, end, start, weight, rows, counts, lengths, table, norms, numbers, sums):  # type: ignore[no-untyped-def]
    """Add what postings ``begin`` to ``end`` of one term give the rows from ``start`` on."""
    width = uint64(len(norms))
    looked_up = uint64(len(table)) // width
    absent = numbers[1]
    first = uint64(start)
    if absent == 0.0:
        for j in range(uint64(begin), uint64(end)):
            row, count = uint64(rows[j]), uint64(counts[j])
            if count < looked_up:
                sums[row - first] += weight * table[count * width + uint64(lengths[row])]
            else:
                sums[row - first] += weight * _worth(
                    np.float64(counts[j]), norms[uint64(lengths[row])], numbers
                )
        return
    # Every row gets something. In the order of rows, so that each sum has its terms in the query's order.
    lifted = weight * absent
    at = uint64(0)
    for j in range(uint64(begin), uint64(end)):
        row, count = uint64(rows[j]), uint64(counts[j])
        for other in range(at, row - first):
            sums[other] += lifted
        if count < looked_up:
            sums[row - first] += weight * table[count * width + uint64(lengths[row])]
        else:
            sums[row - first] += weight * _worth(np.float64(counts[j]), norms[uint64(lengths[row])], numbers)
        at = row - first + uint64(1)
    for other in range(at, uint64(len(sums))):
        sums[other] += lifted


@njit(cache=True, nogil=True)
def _add_impacts(begin, end, start, weight, rows, impacts, sums):  # type: ignore[no-untyped-def]
    first = uint64(start)
    for j in range(uint64(begin), uint64(end)):
        sums[uint64(rows[j]) - first] += weight * np.float64(impacts[j])


@njit(cache=True, nogil=True)
def accumulate(begins, ends, weights, rows, values, lengths, table, norms, numbers, scores):  # type: ignore[no-untyped-def]
    """Add to ``scores`` what each of the query's tokens gives each passage, token by token."""
    for term in range(len(weights)):
        _add(begins[term], ends[term], 0, weights[term], rows, values, lengths, table, norms, numbers, scores)


@njit(cache=True, nogil=True)
def _before(rows, begin, end, stop):  # type: ignore[no-untyped-def]
    """Return where the rows from ``stop`` on begin, among postings ``begin`` to ``end``."""
    low, high = begin, end
    while low < high:
        middle = (low + high) >> 1
        if rows[middle] < stop:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def search(begins, ends, weights, rows, values, lengths, table, norms, numbers, total, allowed, n):  # type: ignore[no-untyped-def]
    """Return the n best of the allowed rows, in no order: ``select`` of what ``accumulate`` adds up.

    Block by block, so that sums are looked through while they are near. ``allowed`` is empty if all may be.
    """
    kept, found = np.empty(n, np.float64), np.empty(n, np.int64)
    size = 0
    cursors = begins.copy()
    block = np.empty(min(_BLOCK, total), np.float64)
    for start in range(0, total, _BLOCK):
        stop = min(start + _BLOCK, total)
        sums = block[: stop - start]
        sums[:] = 0.0
        for term in range(len(weights)):
            begin = cursors[term]
            end = _before(rows, begin, min(ends[term], begin + stop - start), stop)
            _add(begin, end, start, weights[term], rows, values, lengths, table, norms, numbers, sums)
            cursors[term] = end
        size = _select(sums, start, allowed, kept, found, size)
    return found[:size], kept[:size]


@njit(cache=True, nogil=True)
def select(scores, allowed, n):  # type: ignore[no-untyped-def]
    """Return the n largest scores with the lowest rows among equal ones, in no order: (rows, scores)."""
    kept, found = np.empty(n, np.float64), np.empty(n, np.int64)
    size = _select(scores, 0, allowed, kept, found, 0)
    return found[:size], kept[:size]


@njit(cache=True, nogil=True)
def _select(sums, start, allowed, kept, found, size):  # type: ignore[no-untyped-def]
    """Take what is better than the worst so far into a heap of the best, the worst on top.

    Of equal scores the higher row is the worse. Rows come in ascending order, so each is worse than all
    before it that it equals.
    """
    n = len(kept)
    bar = kept[0] if size == n else -np.inf
    total = uint64(len(sums))
    for chunk in range(uint64(0), total, uint64(_CHUNK)):
        stop = min(chunk + uint64(_CHUNK), total)
        better = False
        for at in range(chunk, stop):
            better |= sums[at] > bar
        if not better:
            continue
        for at in range(chunk, stop):
            score = sums[at]
            if not score > bar:
                continue
            row = start + np.int64(at)
            if len(allowed) > 0 and not allowed[row]:
                continue
            if size < n:
                _push(kept, found, size, score, row)
                size += 1
            else:
                _replace(kept, found, score, row)
            if size == n:
                bar = kept[0]
    return size


@njit(cache=True, nogil=True)
def _push(kept, found, size, score, row):  # type: ignore[no-untyped-def]
    place = size
    while place > 0:
        above = (place - 1) >> 1
        if kept[above] < score:
            break
        kept[place] = kept[above]
        found[place] = found[above]
        place = above
    kept[place] = score
    found[place] = row


@njit(cache=True, nogil=True)
def _replace(kept, found, score, row):  # type: ignore[no-untyped-def]
    n = len(kept)
    place = 0
    while True:
        below = 2 * place + 1
        if below >= n:
            break
        other = below + 1
        if other < n and (
            kept[other] < kept[below] or (kept[other] == kept[below] and found[other] > found[below])
        ):
            below = other
        if kept[below] >= score:
            break
        kept[place] = kept[below]
        found[place] = found[below]
        place = below
    kept[place] = score
    found[place] = row
