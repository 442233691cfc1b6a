"""Confidence sequences: intervals of a mean that hold at every sample size at once.

An ordinary interval is valid at one sample size. Stopping as soon as an interval is narrow enough needs a
sequence that covers the mean at all sample sizes together: P(for all t: mean in C_t) ≥ level.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from evenmesh_core.arrays import FloatArray, float_array, number
from evenmesh_core.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class ConfidenceSequence:
    """Intervals of a mean in [0, 1], one after each sample; each lies within the one before.

    ``low`` and ``high`` are vectors [t] in [0, 1]. Where the samples contradict each other so much that the
    intersection would be empty (which has a probability below 1 − level), both ends are where it closed.
    """

    low: FloatArray
    high: FloatArray

    @property
    def width(self) -> FloatArray:
        """High minus low, vector [t] in [0, 1]."""
        return self.high - self.low

    def first_within(self, width: float) -> int | None:
        """Return the number of samples after which the interval is at most ``width``; None if it never is."""
        narrow = np.flatnonzero(self.width <= width)
        return int(narrow[0]) + 1 if len(narrow) else None


def empirical_bernstein_sequence(
    values: ArrayLike, *, level: float = 0.95, largest_bet: float = 0.5
) -> ConfidenceSequence:
    """Bound the mean of values in [0, 1] at every sample size, narrowly where they vary little.

    The predictable plug-in empirical-Bernstein confidence sequence: with a = 1 − level, running estimates
    μ̂_t = (1/2 + Σ_{i≤t} x_i) / (t + 1) and σ̂²_t = (1/4 + Σ_{i≤t} (x_i − μ̂_i)²) / (t + 1), weights
    λ_t = min(√(2 log(2/a) / (σ̂²_{t−1} t log(1 + t))), c), v_t = 4 (x_t − μ̂_{t−1})² and
    ψ(λ) = (−log(1 − λ) − λ) / 4, the interval after t samples is

        Σ λ_i x_i / Σ λ_i ± (log(2/a) + Σ v_i ψ(λ_i)) / Σ λ_i ,

    and all of them together are intersected, which costs no coverage. It holds for any values in [0, 1] whose
    conditional mean, given those before, stays the same: independent draws are.

    Args:
        values: vector [t], each in [0, 1], in the order they were drawn.
        level: probability with which all intervals hold together, in (0, 1).
        largest_bet: c, in (0, 1).

    Source: Waudby-Smith & Ramdas 2024, "Estimating means of bounded random variables by betting", theorem 2
    (predictable plug-in empirical Bernstein) with the weights given there; the running intersection is theirs
    too.

    Raises:
        InvalidInput: not a non-empty vector in [0, 1], or level or largest_bet outside (0, 1).
    """
    x = float_array("values", values, low=0.0, high=1.0)
    budget = np.log(2.0 / (1.0 - _inside("level", level)))
    cap = _inside("largest_bet", largest_bet)
    t = np.arange(1, len(x) + 1, dtype=np.float64)
    mean = (0.5 + np.cumsum(x)) / (t + 1)
    variance = (0.25 + np.cumsum((x - mean) ** 2)) / (t + 1)
    mean_before = np.concatenate([[0.5], mean[:-1]])
    variance_before = np.concatenate([[0.25], variance[:-1]])
    bets = np.minimum(np.sqrt(2.0 * budget / (variance_before * t * np.log1p(t))), cap)
    staked = np.cumsum(bets)
    spread = np.cumsum(4.0 * (x - mean_before) ** 2 * (-np.log1p(-bets) - bets) / 4.0)
    centre = np.cumsum(bets * x) / staked
    half = (budget + spread) / staked
    return _intersected(centre - half, centre + half)


def _inside(name: str, value: float) -> float:
    inside = number(name, value, low=0.0, high=1.0)
    if inside in (0.0, 1.0):
        raise InvalidInput(name, value, "between 0 and 1, neither of them")
    return inside


def _intersected(low: FloatArray, high: FloatArray) -> ConfidenceSequence:
    low = np.maximum.accumulate(np.maximum(low, 0.0))
    high = np.minimum.accumulate(np.minimum(high, 1.0))
    closed = np.flatnonzero(low > high)
    if len(closed):
        first = int(closed[0])
        at = (
            float(min(high[first - 1], max(low[first - 1], (low[first] + high[first]) / 2))) if first else 0.5
        )
        low[first:], high[first:] = at, at
    return ConfidenceSequence(low, high)
