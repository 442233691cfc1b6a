"""Whether a candidate orders what an agent judged about as well as what serves it now, or better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

FloatArray = NDArray[np.float64]

MARGIN: Final = 0.05
"""Loss of nDCG that a promotion may at most risk."""
_FOUND: Final = 0.9  # probability with which enough queries show a loss of the margin


@dataclass(frozen=True, slots=True)
class Comparison:
    """A candidate against what serves, on the held-out queries.

    Attributes:
        queries: queries on which orders can differ in value, [0, inf).
        served: mean nDCG of what serves, [0, 1]; nan without queries.
        candidate: mean nDCG of the candidate.
        p_worse: probability of a difference at least as bad as the observed one if both were alike, [0, 1];
            nan with fewer than two queries.
        low: lower bound of candidate − served, [-1, 1], one-sided at the level; nan with fewer than two
            queries.
        better: whether the candidate is significantly better.
        not_inferior: whether enough queries show that it loses less than the margin.
        decides: whether there are enough queries to find a difference at the level of the test.
        worse: whether the candidate is significantly worse.
    """

    queries: int
    served: float
    candidate: float
    p_worse: float
    low: float
    better: bool
    not_inferior: bool
    decides: bool
    worse: bool

    @property
    def promotes(self) -> bool:
        """Whether the candidate may serve: it is better, or loses less than the margin."""
        return self.better or self.not_inferior


def fewest_queries(level: float) -> int:
    """Return the fewest queries that a test needs: n signs agree by chance with probability 2^-n."""
    return math.ceil(math.log2(1 / level))


def enough_queries(margin: float) -> int:
    """Return the fewest queries that can show that a candidate loses less than the margin.

    A mean loss of the margin may be a total loss of a few queries. n queries have none of these with
    probability (1 − margin)^n, which must be at most one in ten.

    Args:
        margin: loss of nDCG, (0, 1).
    """
    return math.ceil(math.log(1 - _FOUND) / math.log1p(-margin))


def order_value(scores: ArrayLike, usefulness: ArrayLike, *, shown: int | None = None) -> float:
    """Return the nDCG of the order that scores give to passages.

    The gain is the usefulness, the discount log2(rank + 1); the ideal order is by usefulness.

    Args:
        scores: vector [n].
        usefulness: vector [n] in [0, 1].
        shown: passages that count, the best, [1, n]; None: all.

    Returns:
        The value in [0, 1]; nan where every order has the same value.
    """
    gains = np.asarray(usefulness, dtype=np.float64)
    if len(gains) == 0 or gains.min() == gains.max():
        return math.nan
    discounts = 1 / np.log2(np.arange(len(gains) if shown is None else shown) + 2)
    order = np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")
    ideal = np.sort(gains)[::-1]
    return float(gains[order[:shown]] @ discounts / (ideal[:shown] @ discounts))


def compare(
    served: Sequence[float], candidate: Sequence[float], *, level: float, margin: float = MARGIN
) -> Comparison:
    """Test whether the candidate is better, loses less than a margin, or is worse, over queries.

    All are one-sided tests by Student's t of the paired differences: the lower bound of their mean lies above
    0; it lies above −margin, with :func:`enough_queries`; the upper bound lies below 0. A candidate that is
    not shown to be worse may be so, because few queries show little.

    Args:
        served: value of each query with what serves; nan where undefined.
        candidate: the same with the candidate.
        level: of each test, (0, 1).
        margin: loss of nDCG that is accepted, (0, 1).
    """
    one: FloatArray = np.asarray(candidate, dtype=np.float64)
    other: FloatArray = np.asarray(served, dtype=np.float64)
    defined = ~(np.isnan(one) | np.isnan(other))
    queries = int(defined.sum())
    if queries == 0:
        return Comparison(0, math.nan, math.nan, math.nan, math.nan, False, False, False, False)
    one, other = one[defined], other[defined]
    p_worse, low = _test(one - other, level)
    decides = queries >= fewest_queries(level)
    return Comparison(
        queries,
        float(other.mean()),
        float(one.mean()),
        p_worse,
        low,
        better=decides and low > 0,
        not_inferior=queries >= enough_queries(margin) and low > -margin,
        decides=decides,
        worse=p_worse <= level,
    )


def _test(differences: FloatArray, level: float) -> tuple[float, float]:
    """Return the p-value of a mean as low by chance, and the mean's lower bound; nan with fewer than two."""
    queries, mean = len(differences), float(differences.mean())
    if queries < 2:
        return math.nan, math.nan
    error = float(differences.std(ddof=1)) / math.sqrt(queries)
    if error == 0.0:
        return (0.0 if mean < 0 else 1.0), mean
    return float(stdtr(queries - 1, mean / error)), float(mean + stdtrit(queries - 1, level) * error)
