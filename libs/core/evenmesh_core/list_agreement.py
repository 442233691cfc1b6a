"""Agreement of two rankings of the same query, which need not hold the same items."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenmesh_core.errors import InvalidInput


def kendall_tau(first: Sequence[str], second: Sequence[str]) -> float:
    """Return Kendall's τ of two rankings: how far they agree on which of two items is better.

    Of all pairs of items that either holds: those ordered alike, less those ordered the other way, over all.
    An item that one of them lacks ranks below all that it holds; what it lacks is tied. So of two rankings of
    the same n items it is τ itself; of two of k items that share none, −k / (2k − 1).

    Args:
        first: item ids, best first, each once.
        second: the same of the other ranking.

    Returns:
        τ in [−1, 1], 1 for equal rankings; ``nan`` where the two hold fewer than two items together.
        Takes O(n²) time and memory.

    Source: Kendall 1938; for top-k lists 1 − 2 K^(1/2) / (n (n − 1) / 2), with K^(p) of Fagin, Kumar &
    Sivakumar 2003, section 3.1; Salemi & Zamani 2025, figure 3 reports τ between agents' lists.

    Raises:
        InvalidInput: an item twice in a ranking.
    """
    _check(first, second)
    items = list(dict.fromkeys([*first, *second]))
    n = len(items)
    if n < 2:
        return float("nan")
    one, other = (_ranks(ranking, items) for ranking in (first, second))
    signs = np.sign(one[:, None] - one[None, :]) * np.sign(other[:, None] - other[None, :])
    # every pair is there twice, and the diagonal is 0
    return float(signs.sum() / (n * (n - 1)))


def jaccard(first: Sequence[str], second: Sequence[str]) -> float:
    """Return the share of the items of either ranking that both hold, in any order.

    Args:
        first: item ids, each once.
        second: the same of the other ranking.

    Returns:
        |A ∩ B| / |A ∪ B| in [0, 1]; ``nan`` where both are empty.

    Source: Jaccard 1901; Salemi & Zamani 2025, figure 3.

    Raises:
        InvalidInput: an item twice in a ranking.
    """
    _check(first, second)
    one, other = set(first), set(second)
    together = one | other
    return len(one & other) / len(together) if together else float("nan")


def _ranks(ranking: Sequence[str], items: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the rank of each of ``items``; the rank after the last for an unranked one."""
    rank = {item: place for place, item in enumerate(ranking)}
    return np.array([rank.get(item, len(ranking)) for item in items], dtype=np.int64)


def _check(first: Sequence[str], second: Sequence[str]) -> None:
    for name, ranking in (("first", first), ("second", second)):
        if len(set(ranking)) < len(ranking):
            raise InvalidInput(name, ranking, "each item once")
