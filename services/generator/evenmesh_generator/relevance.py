"""Judge passages until the best of them can no longer change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from evenmesh_core.ranking import top_k

AT_MOST: Final = 1.0
"""What the relevance of any passage is at most: it is a probability. A model's head says no less: that of the
pointer model may copy its verdict from the passage, and a linear one reaches 1 in double precision."""

_FIRST: Final = 16
"""Passages judged before it is looked for the first time whether they are enough: a batch."""


def rounds(passages: int, best: int | None) -> Iterator[slice]:
    """Yield the passages to judge, round by round, all of them in the end.

    Each round is as long as all before it, so that the few batches more cost little where nothing stops it.

    Args:
        passages: how many there are, [1, inf).
        best: how many of the best are wanted; None: one round.
    """
    begin, end = 0, passages if best is None else max(_FIRST, best)
    while begin < passages:
        yield slice(begin, min(end, passages))
        begin, end = end, 2 * end


def settled(judged: Sequence[float], ids: Sequence[str], best: int, tolerance: float) -> bool:
    """Return whether the best of all passages are among those judged, whatever the others' relevance.

    The best are by relevance, then by ascending id, and they are tried with every other passage at its most,
    less what is tolerated. So an unjudged passage is more relevant by at most ``tolerance`` than any of the
    best; without tolerance the best are, in their order, those that judging every passage finds.

    Args:
        judged: relevance of the first passages, [0, 1] each.
        ids: of all passages.
        best: how many are wanted, [1, len(ids)].
        tolerance: [0, 1].
    """
    at_most = np.full(len(ids), AT_MOST - tolerance)
    at_most[: len(judged)] = judged
    return bool((top_k(at_most, ids, best) < len(judged)).all())
