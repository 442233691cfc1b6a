"""How many queries a paired comparison needs, before any of them is asked."""

from __future__ import annotations

import math
from collections.abc import Callable

from evenmesh_core.arrays import count, number
from evenmesh_core.errors import InvalidInput

MOST_PAIRS = 10_000_000
"""Pairs beyond which a comparison counts as one that nobody can afford."""


def pairs_for_difference(
    difference: float, deviation: float, *, level: float = 0.95, power: float = 0.8
) -> int:
    """Return the smallest number of queries with which a paired t-test finds a difference.

    Args:
        difference: mean of first − second that is to be found, not 0; its sign does not matter.
        deviation: standard deviation of first − second over queries, above 0.
        level: 1 − the level of the two-sided test, in (0, 1).
        power: probability of finding the difference if it is there, in (0, 1), above 1 − level.

    Returns:
        An integer from 2.

    Source: Cohen 1988, chapter 2, computed exactly by the noncentral t distribution.

    Raises:
        InvalidInput: a number out of range, or more than :data:`MOST_PAIRS` are needed.
    """
    effect = abs(number("difference", difference)) / _positive("deviation", deviation)
    if effect == 0.0:
        raise InvalidInput("difference", difference, "any number but 0")
    share = _share("level", level)
    wanted = _share("power", power)
    if wanted <= 1 - share:
        raise InvalidInput("power", power, f"above {1 - share:g}, what a test finds by chance")
    return _smallest(lambda pairs: power_of_pairs(pairs, effect, 1.0, level=share) >= wanted)


def power_of_pairs(pairs: int, difference: float, deviation: float, *, level: float = 0.95) -> float:
    """Return the probability that a paired t-test of so many queries finds a difference, in (0, 1].

    Args:
        pairs: number of queries, from 2.
        difference: mean of first − second.
        deviation: standard deviation of first − second over queries, above 0.
        level: 1 − the level of the two-sided test, in (0, 1).

    Source: as :func:`pairs_for_difference`.

    Raises:
        InvalidInput: a number out of range.
    """
    from scipy.stats import nct, t  # a third of a second to import

    n = count("pairs", pairs, low=2)
    effect = abs(number("difference", difference)) / _positive("deviation", deviation)
    freedom = n - 1
    shift = effect * math.sqrt(n)
    if shift > 30.0:  # beyond what the noncentral distribution is computed for, and found for sure
        return 1.0
    limit = float(t.isf((1 - _share("level", level)) / 2, freedom))
    return float(min(1.0, nct.sf(limit, freedom, shift) + nct.cdf(-limit, freedom, shift)))


def pairs_for_half_width(half_width: float, deviation: float, *, level: float = 0.95) -> int:
    """Return the smallest number of queries whose interval of a mean difference is expected to be so narrow.

    Args:
        half_width: largest half of the width of Student's interval, above 0.
        deviation: standard deviation of first − second over queries, above 0.
        level: confidence level, in (0, 1).

    Returns:
        An integer from 2.

    Source: Student 1908.

    Raises:
        InvalidInput: a number out of range, or more than :data:`MOST_PAIRS` are needed.
    """
    from scipy.special import stdtrit

    ratio = _positive("half_width", half_width) / _positive("deviation", deviation)
    tail = (1 - _share("level", level)) / 2
    return _smallest(lambda pairs: -float(stdtrit(pairs - 1, tail)) / math.sqrt(pairs) <= ratio)


def _smallest(enough: Callable[[int], bool]) -> int:
    """Return the smallest number of pairs that is enough; more are always enough, too."""
    high = 2
    while not enough(high):
        high *= 2
        if high > MOST_PAIRS:
            raise InvalidInput("pairs", f"more than {MOST_PAIRS}", f"at most {MOST_PAIRS}: look for more")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _positive(name: str, value: float) -> float:
    found = number(name, value)
    if found <= 0:
        raise InvalidInput(name, value, "above 0")
    return found


def _share(name: str, value: float) -> float:
    found = number(name, value)
    if not 0 < found < 1:
        raise InvalidInput(name, value, "above 0 and below 1")
    return found
