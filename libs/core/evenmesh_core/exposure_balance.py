"""Fairness of exposure over time: what each group is owed, and what to add to the scores of its items.

A group is owed the exposure that its merit deserves, minus what it was given. Old exposure and old merit fade
with a half-life. The controller adds to scores in proportion to what is owed, within a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from evenmesh_core.arrays import FloatArray, float_array, number, same_length
from evenmesh_core.errors import InvalidInput
from evenmesh_core.plackett_luce.policy import normalize_scores, temperature

MAX_STRENGTH: Final = 10.0
"""Largest strength of a controller. Score ranges per context owed."""


@dataclass(frozen=True, slots=True, eq=False)
class ExposureBalance:
    """Exposure that groups deserved and were given until now, in contexts: 1 is all places of one context.

    The empty balance is that of a controller that has seen nothing.
    """

    names: Sequence[str] = ()
    """Unique names of g groups."""
    target: FloatArray = field(default_factory=lambda: np.empty(0))
    """Vector [g], from 0: exposure in proportion to merit, added up."""
    exposure: FloatArray = field(default_factory=lambda: np.empty(0))
    """Vector [g], from 0: exposure given, added up."""

    @property
    def owed(self) -> FloatArray:
        """Vector [g]: target minus exposure; below 0 for groups that got more than they deserve."""
        return self.target - self.exposure

    def added(self, names: Sequence[str], target: ArrayLike, exposure: ArrayLike) -> ExposureBalance:
        """Return the balance with what one or several queries deserved and showed.

        Args:
            names: of groups, which may repeat.
            target: vector of what they deserved, parallel to the names.
            exposure: vector of what they were given, parallel to the names.

        Raises:
            InvalidInput: vectors that are not parallel, or with elements that are negative or not finite.
        """
        if not len(names):
            return self
        deserved, given = float_array("target", target, low=0.0), float_array("exposure", exposure, low=0.0)
        same_length("names", names, "target", deserved)
        same_length("names", names, "exposure", given)
        places = {name: place for place, name in enumerate(dict.fromkeys([*self.names, *names]))}
        before, n = len(self.names), len(places)
        at = [places[name] for name in names]
        sums = [
            np.concatenate([old, np.zeros(n - before)])
            + np.bincount(at, weights=new, minlength=n).astype(np.float64)
            for old, new in ((self.target, deserved), (self.exposure, given))
        ]
        return ExposureBalance(list(places), *sums)

    def offsets(self, *, strength: float, limit: float) -> dict[str, float]:
        """Return what to add to the scores of each group, by name; groups that are owed nothing are left out.

        It is ``strength`` times what the group is owed, and at least ``-limit`` and at most ``limit``.

        Args:
            strength: score ranges per context owed, in [0, 10].
            limit: bound of the influence, in score ranges, [0, 1].

        Source: Morik et al. 2020, the proportional controller FairCo, which adds what the most favoured group
        has ahead of the group and so never takes anything away. Here the error is that of Biega et al. 2018,
        merit minus exposure, so that groups ahead of their target lose.

        Raises:
            InvalidInput: a number out of range.
        """
        gain = number("strength", strength, low=0.0, high=MAX_STRENGTH)
        bound = number("limit", limit, low=0.0, high=1.0)
        moved = np.clip(gain * self.owed, -bound, bound)
        return {name: one for name, one in zip(self.names, moved.tolist(), strict=True) if one}


def fading(elapsed: float | FloatArray, half_life: float) -> FloatArray:
    """Return what is left of something after some time: 2^(−elapsed / half-life).

    Raises:
        InvalidInput: a half-life that is not finite or not above 0.
    """
    left: FloatArray = np.exp2(-np.asarray(elapsed) / _positive("half_life", half_life))
    return left


def merit_shares(relevance: ArrayLike, copies: ArrayLike) -> FloatArray:
    """Return the share of a context that each item deserves: in proportion to relevance, copies once.

    Of items that say the same, the most relevant one counts, the first of equals, and the others deserve
    nothing: repeating what one has said earns no exposure.

    Args:
        relevance: vector [n] of finite numbers from 0.
        copies: int vector [n]; items with the same number say the same
            (:func:`evenmesh_core.near_duplicates.near_duplicates`).

    Returns:
        Vector [n] from 0 that sums to 1; all zeros where nothing is relevant.

    Source: Biega et al. 2018, for attention in proportion to relevance; copies are ours.

    Raises:
        InvalidInput: relevance as above, or vectors of different lengths.
    """
    gains = float_array("relevance", relevance, low=0.0)
    marks = np.asarray(copies)
    same_length("relevance", gains, "copies", marks)
    order = np.lexsort((np.arange(len(gains)), -gains, marks))
    first = np.append(True, np.diff(marks[order]) != 0)
    kept = np.zeros_like(gains)
    kept[order[first]] = gains[order[first]]
    total = kept.sum()
    return kept / total if total > 0 else kept


def balanced_weights(scores: ArrayLike, offsets: ArrayLike, alpha: float) -> FloatArray:
    """Return log-weights of items whose scores change by what the controller adds: (s̄ + offset)^α.

    Without any offset they are those of :func:`evenmesh_core.plackett_luce.log_weights`. Two items whose
    normalised scores s̄ differ by more than their offsets do, which is at most twice the controller's limit,
    keep their order.

    Args:
        scores: vector [n] of finite scores of any sign.
        offsets: vector [n] in [-1, 1].
        alpha: sharpness in [0, 100].

    Returns:
        Vector [n] of log-weights in [0, 3^α].

    Raises:
        InvalidInput: vectors as above, or of different lengths; alpha out of range.
    """
    normalized = normalize_scores(scores)
    moved = float_array("offsets", offsets, low=-1.0, high=1.0)
    same_length("scores", normalized, "offsets", moved)
    weights: FloatArray = (normalized + moved) ** temperature(alpha)
    return weights


def _positive(name: str, value: float) -> float:
    if not 0 < number(name, value) < np.inf:
        raise InvalidInput(name, value, "a finite number above 0")
    return value
