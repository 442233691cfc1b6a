"""Whether a candidate orders what an agent judged at least as well as what serves it now."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenmesh_core.significance import paired_bootstrap

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A candidate against what serves, on the held-out queries.

    Attributes:
        queries: queries on which orders can differ in value, [0, inf).
        served: mean nDCG of what serves, [0, 1]; nan without queries.
        candidate: mean nDCG of the candidate.
        p_worse: probability of a difference at least as bad as the observed one if both were alike, (0, 1];
            nan with fewer than two queries.
        decides: whether there are enough queries to find a difference at the level of the test.
        worse: whether the candidate is significantly worse.
    """

    queries: int
    served: float
    candidate: float
    p_worse: float
    decides: bool
    worse: bool

    @property
    def promotes(self) -> bool:
        """Whether the candidate may serve."""
        return self.decides and not self.worse


def fewest_queries(level: float) -> int:
    """Return the fewest queries that a test needs: n signs agree by chance with probability 2^-n."""
    return math.ceil(math.log2(1 / level))


def order_value(scores: ArrayLike, usefulness: ArrayLike) -> float:
    """Return the nDCG of the order that scores give to judged passages.

    The gain is the usefulness, the discount log2(rank + 1); the ideal order is by usefulness. All judged
    passages count, and no others.

    Args:
        scores: vector [n].
        usefulness: vector [n] in [0, 1].

    Returns:
        The value in [0, 1]; nan where every order has the same value.
    """
    gains = np.asarray(usefulness, dtype=np.float64)
    if len(gains) == 0 or gains.min() == gains.max():
        return math.nan
    discounts = 1 / np.log2(np.arange(len(gains)) + 2)
    order = np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")
    return float(gains[order] @ discounts / (np.sort(gains)[::-1] @ discounts))


def compare(served: Sequence[float], candidate: Sequence[float], *, level: float, seed: int) -> Comparison:
    """Test whether the candidate is worse, by a one-sided paired bootstrap over queries.

    Args:
        served: value of each query with what serves; nan where undefined.
        candidate: the same with the candidate.
        level: of the test, (0, 1).
        seed: of the resamples.
    """
    one: FloatArray = np.asarray(candidate, dtype=np.float64)
    other: FloatArray = np.asarray(served, dtype=np.float64)
    defined = ~(np.isnan(one) | np.isnan(other))
    queries = int(defined.sum())
    if queries == 0:
        return Comparison(0, math.nan, math.nan, math.nan, decides=False, worse=False)
    one, other = one[defined], other[defined]
    if np.array_equal(one, other):
        p_worse = 1.0
    else:
        p_value = paired_bootstrap(one, other, method="percentile", rng=seed).p_value
        # The two-sided value covers differences as large either way: half of it is on the observed side.
        p_worse = p_value / 2 if one.mean() < other.mean() else 1 - p_value / 2
    return Comparison(
        queries,
        float(other.mean()),
        float(one.mean()),
        p_worse,
        decides=queries >= fewest_queries(level),
        worse=p_worse <= level,
    )
