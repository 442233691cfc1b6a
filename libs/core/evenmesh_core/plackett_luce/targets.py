"""The fairness dial that reaches a target for one query: a disparity, or a bound on lost relevance.

Both quantities grow with α (``docs/science/targets.md`` has the proof), so there is one dial for each value
between those of the ends, and the lowest that meets a bound is the most even that does.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import entr

from evenmesh_core.arrays import FloatArray, count, float_array, number, same_length
from evenmesh_core.errors import InvalidInput
from evenmesh_core.plackett_luce.inclusion import integrated
from evenmesh_core.plackett_luce.policy import MAX_ALPHA, normalize_scores

REACHED: Final = 1e-3
"""How far from its target, as a fraction, a policy may be and count as reaching it."""

_TOLERANCE: Final = 5e-5
_PRECISION: Final = 12.0  # of inclusion probabilities: to about 1e-6
_COARSE: Final = 8.0  # of those at the first dial, which is seldom the last: the value to about a tolerance
_COARSEST: Final = 5.0  # of those from here on: many at the cut share the error, which is a fraction of it
_MANY: Final = 50
_DIALS: Final = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 9.0, 12.0, 20.0])
_SHARP_DIALS: Final = np.array([20.0, 25.0, 32.0, 40.0, 50.0, 70.0])
_FAR: Final = 4.0  # tolerances from the target within which a coarse value may be on its other side
_SURE: Final = 30.0  # log-weight above that of the k-th heaviest from which an item is surely included
_IN: Final = 0.999  # probability from which an item counts as included where slopes are approximated
_ROUNDS: Final = 3  # of the approximation that chooses where to begin
_STEPS: Final = 100
_FLATTEST: Final = 1.05  # base of the powers of α in which it steps: a little above 1, it steps in α itself
_SECANTS: Final = 6  # then every other step halves the range


@dataclass(frozen=True, slots=True)
class Disparity:
    """A target: EE-D over its bound, in [0, 1], in expectation."""

    value: float


@dataclass(frozen=True, slots=True)
class RelevanceLoss:
    """A target: the most even policy that loses at most this share, in [0, 1], of the best relevance."""

    value: float


Target = Disparity | RelevanceLoss
"""What a policy should reach."""


@dataclass(frozen=True, slots=True, eq=False)
class TargetedPolicy:
    """The Plackett–Luce policy that reaches a target, or comes nearest to it."""

    target: Target
    alpha: float
    """Sharpness, in [0, 100]."""
    inclusion: FloatArray
    """Vector [n]: probability of each item to be in the top k, without sampling, to 1e-6."""
    disparity: float
    """EE-D / min(k, n) of these probabilities, in [min(k, n) / n, 1]."""
    relevance: float
    """Σ probability · relevance."""
    best_relevance: float
    """Sum of the min(k, n) largest relevances: that of the ranking without sampling."""
    reached: bool
    """Whether the target is reached, to :data:`REACHED`."""


def policy_for(target: Target, scores: ArrayLike, relevance: ArrayLike, *, k: int) -> TargetedPolicy:
    """Find the policy that reaches a target, by root finding on exact inclusion probabilities.

    The disparity is met to 5e-5, and the bound on relevance from above. A target that no dial reaches gets
    the nearest end: α = 0, or α = 100, at which items of equal score are still equally likely.

    Args:
        target: target to reach.
        scores: vector [n] of finite retrieval scores of any sign.
        relevance: vector [n] of finite numbers from 0, which grow with the scores, equal for equal scores.
        k: length of the top, from 1.

    Source: Kim & Diaz 2025, §3.2 and §3.3.1, for policy and disparity; the search goes beyond it. Evaluates
    :func:`evenmesh_core.plackett_luce.inclusion_probabilities` two or three times, seldom more.

    Raises:
        InvalidInput: a target outside [0, 1], scores or relevance as above, or k below 1.
    """
    values = float_array("scores", scores)
    normalized = normalize_scores(values)
    gains = float_array("relevance", relevance, low=0.0)
    same_length("scores", normalized, "relevance", gains)
    _check_order(values, gains)  # not normalized, where rounding makes near scores equal
    size = min(count("k", k), len(normalized))
    best = float(np.sort(gains)[len(gains) - size :].sum())
    uniform = np.full(len(normalized), size / len(normalized))
    quantity: _Quantity
    if isinstance(target, Disparity):
        goal, slack = number("disparity", target.value, low=0.0, high=1.0), _TOLERANCE
        quantity = _Disparity(uniform, size)
    else:
        slack = best * _TOLERANCE / 2
        goal = best * (1 - number("relevance_loss", target.value, low=0.0, high=1.0)) + slack
        quantity = _Relevance(uniform, gains, best)
    if goal <= quantity.low + slack:
        alpha, inclusion = 0.0, uniform
    else:
        alpha, inclusion = _search(normalized, size, quantity, goal, slack)
    disparity = min(1.0, float(inclusion @ inclusion) / size)
    found = float(inclusion @ gains)
    if isinstance(target, Disparity):
        reached = abs(disparity - target.value) <= REACHED
    else:
        reached = found >= best * (1 - target.value - REACHED)
    return TargetedPolicy(target, alpha, inclusion, disparity, found, best, reached)


class _Quantity(ABC):
    """What grows with α, as a function of inclusion probabilities, and its range [low, high]."""

    low: float
    high: float

    @abstractmethod
    def value(self, inclusion: FloatArray) -> float: ...

    @abstractmethod
    def gradient(self, inclusion: FloatArray) -> FloatArray: ...

    def odds(self, value: float) -> float:
        """Return the log-odds of a value within the range, in which growth is nearly even."""
        tiny = 1e-9 * (self.high - self.low)
        return math.log(max(value - self.low, tiny) / max(self.high - value, tiny))

    def odds_slope(self, value: float) -> float:
        """Return the derivative of :meth:`odds`."""
        tiny = 1e-9 * (self.high - self.low)
        return 1 / max(value - self.low, tiny) + 1 / max(self.high - value, tiny)


class _Disparity(_Quantity):
    def __init__(self, uniform: FloatArray, size: int) -> None:
        self._size = size
        self.low, self.high = self.value(uniform), 1.0 + 2 * _TOLERANCE

    def value(self, inclusion: FloatArray) -> float:
        return float(inclusion @ inclusion) / self._size

    def gradient(self, inclusion: FloatArray) -> FloatArray:
        return inclusion * (2 / self._size)


class _Relevance(_Quantity):
    def __init__(self, uniform: FloatArray, gains: FloatArray, best: float) -> None:
        self._gains = gains
        self.low, self.high = self.value(uniform), best * (1.0 + 2 * _TOLERANCE)

    def value(self, inclusion: FloatArray) -> float:
        return float(inclusion @ self._gains)

    def gradient(self, inclusion: FloatArray) -> FloatArray:
        return self._gains


def _check_order(scores: FloatArray, relevance: FloatArray) -> None:
    order = np.argsort(scores, kind="stable")
    rises, gains = np.diff(scores[order]), np.diff(relevance[order])
    wrong = np.flatnonzero((gains < 0) | ((rises == 0) & (gains != 0)))
    if wrong.size:
        place = int(order[wrong[0] + 1])
        raise InvalidInput(
            f"relevance[{place}]",
            float(relevance[place]),
            "values that grow with the scores and are equal for equal scores",
        )


def _search(
    normalized: FloatArray, k: int, quantity: _Quantity, goal: float, slack: float
) -> tuple[float, FloatArray]:
    """Return the dial at which a quantity is ``goal`` to ``slack``, or the largest; and its inclusion.

    Steps are in the quantity's log-odds over b^α, within a shrinking range, where b is the score at the cut,
    which decides what is included: for two items a straight line. The first slope is that of an
    approximation; later ones are secants, turned as much as the approximation turns along them.
    """
    logs = np.log(normalized)
    base = max(float(np.partition(normalized, len(normalized) - k)[len(normalized) - k]), _FLATTEST)
    wanted, alpha = quantity.odds(goal), _first_guess(normalized, k, quantity, goal)
    low, high, coarse = 0.0, MAX_ALPHA, _COARSE if k < _MANY else _COARSEST
    before: tuple[float, float, float] | None = None
    for step in range(_STEPS):
        weights = normalized**alpha
        inclusion = integrated(weights, k, _PRECISION if step else coarse)
        value = quantity.value(inclusion)
        gap = value - goal
        if not step and (abs(gap) <= slack or alpha == MAX_ALPHA):
            continue  # with the same dial, precisely
        if abs(gap) <= slack or (gap < 0 and alpha == MAX_ALPHA) or high - low < 1e-12 * high:
            break
        if step or abs(gap) > _FAR * slack:
            low, high = (alpha, high) if gap < 0 else (low, alpha)
        place, odds = base**alpha, quantity.odds(value)
        unsure = inclusion < _IN  # errors of the others', times speeds of up to 2^100, would be the slope
        rate = _slope(inclusion[unsure], quantity.gradient(inclusion)[unsure], (weights * logs)[unsure])
        slope = approximate = rate * quantity.odds_slope(value) / (place * math.log(base))
        if before is not None and before[0] != place:
            slope = (odds - before[1]) / (place - before[0])
            if min(approximate, before[2]) > 0:
                slope *= min(max(2 * approximate / (approximate + before[2]), 0.5), 2.0)
        before = (place, odds, approximate)
        target = place + (wanted - odds) / slope if slope > 0 else 0.0
        if step >= _SECANTS and step % 2 and high < MAX_ALPHA:
            alpha = (low + high) / 2
        elif base**low < target < base**high:
            alpha = math.log(target, base)
        elif alpha < high == MAX_ALPHA:
            alpha = min(2 * alpha + 1, MAX_ALPHA)
        else:
            alpha = math.sqrt(high) if low == 0 and high > _DIALS[-1] else (low + high) / 2
    return alpha, inclusion


def _slope(inclusion: FloatArray, gradient: FloatArray, speeds: FloatArray) -> float:
    """Return about how fast a quantity grows with α, given how fast the log-weights do.

    Where π_i = 1 − exp(−w_i τ), with one τ that makes them sum to k (Rosén 1997), ∂π_i/∂θ_j is
    q_i 1[i = j] − q_i q_j / Σ q with q = −(1 − π) log(1 − π).
    """
    moved = entr(1.0 - inclusion)
    total = float(moved.sum())
    if total <= 0:
        return 0.0
    mean = float(moved @ speeds) / total
    return float((gradient * moved) @ (speeds - mean))


def _first_guess(normalized: FloatArray, k: int, quantity: _Quantity, goal: float) -> float:
    """Return about the dial at which a quantity is ``goal``, from an approximation at a few dials."""
    wanted = quantity.odds(goal)
    for dials in (_DIALS, _SHARP_DIALS):
        inclusion = _approximated(normalized, k, dials)
        odds = np.maximum.accumulate([quantity.odds(quantity.value(row)) for row in inclusion])
        if odds[-1] >= wanted:
            break
    return float(np.interp(wanted, odds, dials))


def _approximated(normalized: FloatArray, k: int, dials: FloatArray) -> FloatArray:
    """Return Rosén's approximation of inclusion probabilities, a row for each dial."""
    weights = normalized ** dials[:, None]
    weights -= np.partition(weights, len(normalized) - k, axis=1)[:, len(normalized) - k, None]
    masses = np.exp(np.minimum(weights, _SURE))  # relative to the k-th heaviest
    # If s are surely there, the others send the k − s that are missing at this time or later.
    lighter = np.cumsum(np.sort(masses, axis=1), axis=1)[:, : -k - 1 : -1]
    time = (np.arange(k, 0, -1) / np.maximum(lighter, 1e-300)).max(axis=1, keepdims=True)
    for _ in range(_ROUNDS):  # towards the time at which k are expected to have arrived
        left = np.exp(-masses * time)
        arrived = len(normalized) - left.sum(axis=1, keepdims=True)
        flow = (masses * time * left).sum(axis=1, keepdims=True)
        time *= np.exp(np.clip((k - arrived) / np.maximum(flow, 0.1), -2.0, 2.0))
    inclusion: FloatArray = -np.expm1(-masses * time)
    inclusion *= k / inclusion.sum(axis=1, keepdims=True)
    np.minimum(inclusion, 1.0, out=inclusion)
    return inclusion
