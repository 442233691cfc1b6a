"""Intervals of means of values that have a lowest and perhaps a highest one, from their moments alone.

Student's t is too narrow for a few values that lie at an end of their range: the mean of 20 utilities most
of which are 0 is in its interval for 84 % of data sets, and 20 zeros have the interval [0, 0]. Two values
more, one at each end of the range, mend it, as two successes and two failures mend the interval of a share.
"""

from __future__ import annotations

import math
from typing import Final

from scipy.special import stdtrit

from evenmesh_core.arrays import confidence
from evenmesh_core.errors import InvalidInput
from evenmesh_core.sparse_means import LEAST_DIFFERING

_ROUNDING: Final = 1e-9


def bounded_interval(
    count: float,
    mean: float,
    squares: float,
    *,
    low: float,
    high: float,
    noise: float = 0.0,
    level: float = 0.95,
) -> tuple[float, float]:
    """Return the limits of a mean: Student's t after two values more, at the ends of the range.

    With m and s the mean and the standard deviation of all n + 2 values, they are m ± t · s / √(n + 2), t of
    n + 1 degrees of freedom, cut to the range. They always hold the mean of the n values.

    Args:
        count: n, number of values, from 1.
        mean: of the values, in [low, high].
        squares: sum of the squared distances to it, from 0.
        low: lowest value that there can be.
        high: highest value that there can be, above ``low``.
        noise: variance of noise in the sum of the values, from 0.
        level: confidence level, in (0, 1).

    Source: ours, after Agresti & Coull 1998, who add two successes and two failures to a share.

    Raises:
        InvalidInput: a level or a count out of range, or a range that is empty or has no end.
    """
    share = confidence(level)
    if not 1 <= count < math.inf:
        raise InvalidInput("count", count, "1 or more")
    if not -math.inf < low < high < math.inf:
        raise InvalidInput("high", high, f"finite, and above {low}")
    size = count + 2
    middle = (count * mean + low + high) / size
    spread = squares + count * (mean - middle) ** 2 + (low - middle) ** 2 + (high - middle) ** 2
    variance = spread / (size - 1) / size + noise / size**2
    # By the lower tail: (1 + share) / 2 rounds to 1 where the share is all but 1.
    half = float(-stdtrit(size - 1, (1 - share) / 2)) * math.sqrt(variance)
    return max(min(middle - half, mean), low), min(max(middle + half, mean), high)


def too_few_away(count: float, mean: float, squares: float, *, low: float) -> bool:
    """Return whether so few values lie away from their lowest one that Student's t says nothing of the mean.

    How many lie away is Kish's effective number, (Σ(x − low))² / Σ(x − low)²: exactly that number where they
    are equal, less where some are larger than others. Too few are fewer than 12 and than half. Of values that
    are all at the lowest one, none is away, which is too few.

    Args:
        count: number of values, from 1.
        mean: of the values, from ``low``.
        squares: sum of the squared distances to it, from 0.
        low: lowest value that there can be.

    Source: Kish 1965 for the effective number; ours.
    """
    away = max(0.0, mean - low)
    total = squares + count * away**2
    effective = (count * away) ** 2 / total if total > 0 else 0.0
    return effective < LEAST_DIFFERING and 2 * effective < count * (1 - _ROUNDING)
