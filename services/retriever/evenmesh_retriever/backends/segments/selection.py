"""Select the best results of several segments."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from evenmesh_retriever.domain import FloatArray, IntArray, Scored, Unranked


def merged(found: Sequence[Scored], offsets: IntArray, n: int, id_of: Callable[[int], bytes]) -> Scored:
    """Return the best ``n`` of what each segment found, equal scores by ascending id.

    Args:
        found: by segment, best first, equal scores by ascending row, which is ascending id.
        offsets: what to add to each one's rows.
        n: how many to keep.
        id_of: id of a row, the offset included.
    """
    parts = [
        Scored(one.rows + offset, one.scores)
        for one, offset in zip(found, offsets.tolist(), strict=False)
        if len(one.rows)
    ]
    if not parts:
        return Scored(np.empty(0, dtype=np.int64), np.empty(0))
    if len(parts) == 1:
        return Scored(parts[0].rows[:n], parts[0].scores[:n])
    scores = np.concatenate([part.scores for part in parts])
    rows = np.concatenate([part.rows for part in parts])
    source = np.repeat(np.arange(len(parts)), [len(part.rows) for part in parts])
    order = np.argsort(-scores, kind="stable")
    scores, rows, source = scores[order], rows[order], source[order]
    kept = rows[:n].copy()
    # Runs of equal scores from several segments are put in the order of their ids, as far as kept.
    begins = np.flatnonzero(np.concatenate([[True], scores[1:] != scores[:-1]]))
    ends = np.append(begins[1:], len(scores))
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        if begin >= n:
            break
        if end - begin > 1 and source[begin] != source[end - 1]:
            runs = [rows[begin:end][source[begin:end] == one] for one in np.unique(source[begin:end])]
            kept[begin:end] = list(
                islice(heapq.merge(*(run.tolist() for run in runs), key=id_of), min(end, n) - begin)
            )
    return Scored(kept, scores[:n])


def gathered(
    scores: Sequence[FloatArray | None], allowed: Sequence[NDArray[np.bool_] | None], offsets: IntArray
) -> Unranked:
    """Return what may be found of all segments.

    Args:
        scores: by segment, of each of its rows; None for a segment that has none.
        allowed: by segment, whether each of its rows may be found; None if all may.
        offsets: where each segment's rows begin.
    """
    rows, kept = [np.empty(0, dtype=np.int64)], [np.empty(0)]
    for one, mask, offset in zip(scores, allowed, offsets.tolist(), strict=False):
        if one is None:
            continue
        there = np.arange(len(one)) if mask is None else np.flatnonzero(mask)
        rows.append(there + offset)
        kept.append(one if mask is None else one[there])
    return Unranked(np.concatenate(rows), np.concatenate(kept))
