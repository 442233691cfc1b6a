"""Deterministic rankings of scored items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenmesh_core.arrays import IntArray, count, float_array, same_length


def top_k(scores: ArrayLike, ids: Sequence[str] | Sequence[int] | NDArray[Any] | None, k: int) -> IntArray:
    """Find the k best-scored items, best first; equal scores rank by ascending id.

    Takes O(n + k log k) time unless many items tie with the k-th.

    Args:
        scores: vector [n] of finite scores.
        ids: the items' ids, all texts or all whole numbers; None means their places 0 to n − 1.
        k: length of the ranking, from 1; more than n gives n.

    Returns:
        Int vector [min(k, n)] of places in ``scores`` (and ``ids``).

    Raises:
        InvalidInput: scores not a non-empty vector of finite numbers, as many ids as scores, or k below 1.
    """
    values = float_array("scores", scores)
    n = len(values)
    depth = min(count("k", k), n)
    if ids is not None:
        same_length("scores", values, "ids", ids)
    contenders = np.arange(n)
    if depth < n:
        contenders = np.flatnonzero(values >= np.partition(values, n - depth)[n - depth])
    names = contenders if ids is None else np.asarray([ids[place] for place in contenders.tolist()])
    return contenders[np.lexsort((names, -values[contenders]))[:depth]]
