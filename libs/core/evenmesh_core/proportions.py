"""Score intervals of proportions, for values of 0 and 1, where a bootstrap fails.

A bootstrap sees only what was drawn: of a rare event that never came it says that it never comes. Score
intervals ask which true values the data do not contradict, and so are never a point.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaincinv, ndtri

from evenmesh_core.arrays import confidence, count

_TOLERANCE = 1e-12


def wilson_interval(successes: int, trials: int, *, level: float = 0.95) -> tuple[float, float]:
    """Return the score interval of a proportion: both limits in [0, 1], ``low`` at most ``high``.

    All p with |p̂ − p| ≤ z √(p (1 − p) / n). But with x = 1 or 2 successes in at least 10 trials, or 3 in more
    than 50, the lower limit is half the (1 − level) quantile of χ² with 2 x degrees of freedom, over n; with
    as few failures the upper limit likewise. Else it holds a rare p too seldom: 2 % of 51 in 92 % of cases.

    Args:
        successes: number of trials with a 1, from 0 to ``trials``.
        trials: number n of trials, from 1.
        level: confidence level, in (0, 1).

    Source: Wilson 1927; Brown, Cai & DasGupta 2001, §4.1.1 (the modified Wilson interval).

    Raises:
        InvalidInput: a number out of range.
    """
    n = count("trials", trials)
    x = count("successes", successes, low=0, high=n)
    z2 = _quantile(level) ** 2
    few = 3 if n > 50 else 2 if n >= 10 else 0
    middle = (x + z2 / 2) / (n + z2)
    half = math.sqrt(z2 * (x * (n - x) / n + z2 / 4)) / (n + z2)
    low = _rare(x, n, level) if 0 < x <= few else middle - half
    high = 1 - _rare(n - x, n, level) if 0 < n - x <= few else middle + half
    # Exactly 0 and 1 at the ends, whatever the rounding.
    return (0.0 if x == 0 else max(0.0, low)), (1.0 if x == n else min(1.0, high))


def _rare(events: int, trials: int, level: float) -> float:
    """Return the lower limit of a proportion by the Poisson distribution of so few events."""
    return float(gammaincinv(events, 1 - level)) / trials


def paired_difference_interval(
    only_first: int, only_second: int, pairs: int, *, level: float = 0.95
) -> tuple[float, float]:
    """Return Tango's score interval of the difference of two proportions of the same trials.

    All differences d in [−1, 1] with |b − c − n d| ≤ z √(n (2 p (d) + d − d²)), where b and c count the pairs
    in which one alone has a 1, and p(d) is the most likely probability of the second kind of pair if the
    difference is d: (√(B² − 4 A C) − B) / (2 A) with A = 2 n, B = −b − c + (2 n − b + c) d and
    C = −c d (1 − d).

    Args:
        only_first: b, the pairs of which the first alone has a 1.
        only_second: c, the pairs of which the second alone has a 1.
        pairs: number n of all pairs, from 1.
        level: confidence level, in (0, 1).

    Returns:
        Limits of first minus second, in [−1, 1]; never a point: with b = c = 0 it is ±z² / (n + z²).

    Source: Tango 1998, equations 5 to 8; of the intervals that Newcombe 1998 compares and later work prefers,
    the score interval keeps its level best at small n and few differences.

    Raises:
        InvalidInput: a number out of range.
    """
    n = count("pairs", pairs)
    b = count("only_first", only_first, low=0, high=n)
    c = count("only_second", only_second, low=0, high=n - b)
    z = _quantile(level)

    def score(d: float) -> float:
        """Return the score statistic, which falls with d; ±inf where the variance vanishes."""
        linear = -b - c + (2 * n - b + c) * d
        p = (math.sqrt(max(0.0, linear * linear + 8 * n * c * d * (1 - d))) - linear) / (4 * n)
        variance = n * (2 * p + d * (1 - d))
        distance = b - c - n * d
        if variance <= 0:
            return 0.0 if distance == 0 else math.copysign(math.inf, distance)
        return distance / math.sqrt(variance)

    def limit(target: float, end: float) -> float:
        """Return the d between the estimate and ``end`` whose score is ``target``."""
        estimate = (b - c) / n
        inside = math.nextafter(end, 0.0)
        if estimate == end or (score(inside) - target) * (score(estimate) - target) > 0:
            return end
        low, high = sorted((estimate, inside))
        from scipy.optimize import brentq  # a quarter of a second to import

        bound = abs(target) + 1  # ±inf has no slope to search along
        found = brentq(lambda d: float(np.clip(score(d), -bound, bound)) - target, low, high, xtol=_TOLERANCE)
        return float(found)

    return limit(z, -1.0), limit(-z, 1.0)


def _quantile(level: float) -> float:
    # By the lower tail: (1 + share) / 2 rounds to 1 where the share is all but 1.
    return -float(ndtri((1.0 - confidence(level)) / 2))
