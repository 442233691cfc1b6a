"""Divergences between an achieved and a target distribution over groups, all in [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from evenmesh_core.arrays import FloatArray, float_array, same_length
from evenmesh_core.errors import InvalidInput

DivergenceName = Literal["rnod", "nmd", "jsd"]

_SUM_SLACK = 1e-6


@dataclass(frozen=True)
class Attribute:
    """A set of groups with the distribution over them that is wanted.

    Nominal groups (regions) are compared by "jsd"; ordinal ones (numbers of ratings) by "rnod" or "nmd".
    """

    gold: Sequence[float]
    """Target distribution over C groups, from 0, sum 1; in the order of the groups where they are ordinal."""
    divergence: DivergenceName = "rnod"


def distribution(name: str, values: ArrayLike) -> FloatArray:
    """Read a distribution over at least two groups.

    Raises:
        InvalidInput: not a vector of at least two numbers from 0 to 1 that sum to 1 (to within 1e-6).
    """
    shares = float_array(name, values, low=0.0, high=1.0 + _SUM_SLACK)
    if len(shares) < 2:
        raise InvalidInput(f"len({name})", len(shares), "at least 2 groups")
    if abs(shares.sum() - 1.0) > _SUM_SLACK:
        raise InvalidInput(f"sum({name})", float(shares.sum()), "1, to within 1e-6")
    return shares


def rnod(achieved: ArrayLike, gold: ArrayLike) -> float:
    """Return the root normalised order-aware divergence (RNOD), for ordinal groups.

    ``DW_i = Σ_j |i − j| (p_j − p*_j)²``; OD is the mean of DW_i over the groups with ``p*_i > 0``;
    ``RNOD = √(OD / (C − 1))``.

    Args:
        achieved: distribution p over C ordered groups.
        gold: target distribution p* over the same groups.

    Source: Sakai 2023, §2.1 and §3.2; Sakai 2021 (ordinal quantification).

    Raises:
        InvalidInput: not two distributions over the same at least two groups.
    """
    found, wanted = _pair(achieved, gold)
    squared = (found - wanted) ** 2
    distance_weighted = _from_the_left(squared) + _from_the_left(squared[::-1])[::-1]
    order_aware = float(distance_weighted[wanted > 0].mean())
    return min(float(np.sqrt(order_aware / (len(found) - 1))), 1.0)


def _from_the_left(values: FloatArray) -> FloatArray:
    """Return Σ_{j<i} (i − j) v_j for every i in linear time: a step right adds the sum of what is passed."""
    sums: FloatArray = np.concatenate([[0.0], np.cumsum(np.cumsum(values[:-1]))])
    return sums


def nmd(achieved: ArrayLike, gold: ArrayLike) -> float:
    """Return the normalised match distance, for ordinal groups: Σ_i |cum p_i − cum p*_i| / (C − 1).

    Args and errors as :func:`rnod`.

    Source: Sakai 2023, §2.1; Sakai 2021.
    """
    found, wanted = _pair(achieved, gold)
    return min(float(np.abs(np.cumsum(found - wanted)[:-1]).sum()) / (len(found) - 1), 1.0)


def jsd(achieved: ArrayLike, gold: ArrayLike) -> float:
    """Return the Jensen–Shannon divergence, for nominal groups: logarithms to base 2, no square root.

    Args and errors as :func:`rnod`.

    Source: Sakai 2023, §2.1.
    """
    found, wanted = _pair(achieved, gold)
    middle = (found + wanted) / 2
    return min(max((_relative_entropy(found, middle) + _relative_entropy(wanted, middle)) / 2, 0.0), 1.0)


def divergence(name: DivergenceName, achieved: ArrayLike, gold: ArrayLike) -> float:
    """Measure how far a distribution is from its target; the similarity DistrSim is 1 minus this.

    Args:
        name: "rnod", "nmd" or "jsd".
        achieved: distribution over C groups.
        gold: target distribution over the same groups.

    Raises:
        InvalidInput: an unknown name, or as :func:`rnod`.
    """
    measures = {"rnod": rnod, "nmd": nmd, "jsd": jsd}
    if name not in measures:
        raise InvalidInput("divergence", name, "'rnod', 'nmd' or 'jsd'")
    return measures[name](achieved, gold)


def _pair(achieved: ArrayLike, gold: ArrayLike) -> tuple[FloatArray, FloatArray]:
    found, wanted = distribution("achieved", achieved), distribution("gold", gold)
    same_length("gold", wanted, "achieved", found)
    return found, wanted


def _relative_entropy(p: FloatArray, q: FloatArray) -> float:
    some = p > 0  # where p is 0 its part is 0, and q may be too
    return float(p[some] @ np.log2(p[some] / q[some]))
