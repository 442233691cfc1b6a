"""Rankings that give groups of items their shares of exposure, in expectation (Singh & Joachims 2018).

A linear program finds the marginal exposure of each item: as relevant as it can be while every share is
kept. A decomposition turns it into a few rankings with probabilities, from which rankings are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from evenmesh_core.arrays import BoolArray, FloatArray, IntArray, count, float_array, indicators, number
from evenmesh_core.errors import InvalidInput
from evenmesh_core.plackett_luce.sampling import Draws
from evenmesh_core.seeds import Seed, generator

if TYPE_CHECKING:
    from scipy.sparse import csr_array

REACHED: Final = 1e-3
"""How far outside its bounds a share may be and count as kept."""

_LIMIT_S: Final = 10.0
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class ShareBound:
    """A bound on the share of a group in the expected exposure of a context."""

    members: ArrayLike
    """Vector [n] of booleans: the items of the group."""
    at_least: float = 0.0
    """Smallest share, in [0, 1]."""
    at_most: float = 1.0
    """Largest share, in [at_least, 1]."""


class Feasible(NamedTuple):
    """Shares that a group can have, whatever the other bounds are."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, eq=False)
class SharesPolicy:
    """The most relevant policy that keeps shares or comes nearest to it: rankings with probabilities."""

    inclusion: FloatArray
    """Vector [n]: probability of each item to be in the top k."""
    rankings: IntArray
    """Int matrix [m, min(k, n)] of item indices, the most relevant first; m is at most n."""
    probabilities: FloatArray
    """Vector [m] of the rankings' probabilities, which sum to 1."""
    shares: FloatArray
    """Vector [c]: expected share of the group of each bound."""
    feasible: tuple[Feasible, ...]
    """For each bound, the shares that its group can have alone."""
    kept: BoolArray
    """Vector [c]: whether each bound is kept, to :data:`REACHED`."""
    disparity: float
    """EE-D / min(k, n)."""
    relevance: float
    """Σ probability · relevance."""
    best_relevance: float
    """Sum of the min(k, n) largest relevances: that of the ranking without bounds."""


def shares_policy(relevance: ArrayLike, bounds: Sequence[ShareBound], *, k: int) -> SharesPolicy:
    """Return the most relevant policy that keeps bounds on the shares of groups.

    Where no policy keeps all of them, it is the most relevant of those with the smallest sum of violations.

    Args:
        relevance: vector [n] of finite numbers.
        bounds: of c groups, which may overlap; none at all leaves the best ranking.
        k: length of a context, from 1. All its places count alike, as for a machine user.

    Source: Singh & Joachims 2018, §3.3 and §3.4. With a context of k places that count alike the program
    has one variable for each item instead of one for each item and place.

    Raises:
        InvalidInput: relevance not a non-empty vector of finite numbers, k below 1, or a bound that is none.
    """
    gains = float_array("relevance", relevance)
    n = len(gains)
    size = min(count("k", k), n)
    members = [_members(place, bound, n) for place, bound in enumerate(bounds)]
    lows = np.array([bound.at_least for bound in bounds])
    highs = np.array([bound.at_most for bound in bounds])
    inclusion = _marginals(gains, members, lows * size, highs * size, size)
    rankings, probabilities = decompose(inclusion, gains)
    shares = np.array([float(inclusion[one].sum()) / size for one in members])
    return SharesPolicy(
        inclusion=inclusion,
        rankings=rankings,
        probabilities=probabilities,
        shares=shares,
        feasible=tuple(_feasible(int(one.sum()), n, size) for one in members),
        kept=(shares >= lows - REACHED) & (shares <= highs + REACHED),
        disparity=min(1.0, float(inclusion @ inclusion) / size),
        relevance=float(inclusion @ gains),
        best_relevance=float(np.sort(gains)[n - size :].sum()),
    )


def decompose(inclusion: ArrayLike, order: ArrayLike) -> tuple[IntArray, FloatArray]:
    """Return rankings and probabilities with given inclusion probabilities.

    Items lie end to end on a line in descending order, each as long as its probability. The part of an item
    in the j-th unit of the line is its probability to be at rank j, which makes a matrix with rows that sum
    to at most 1 and columns that sum to 1. Points one unit apart cut the line at k different items: a
    ranking. Sliding them by one unit passes at most n rankings; how long each lasts is its probability, so
    that the sum of probability times permutation is the matrix: its Birkhoff–von Neumann decomposition.

    Args:
        inclusion: vector [n] in [0, 1] that sums to a whole number k from 1.
        order: vector [n]; items with large values come first, equal ones by index.

    Returns:
        Int matrix [m, k] of item indices, and vector [m] of probabilities; m ≤ n.

    Source: Singh & Joachims 2018, §3.4, for the decomposition; Madow 1949 for the points one unit apart.

    Raises:
        InvalidInput: probabilities outside [0, 1], or that do not sum to a whole number from 1.
    """
    lengths = float_array("inclusion", inclusion, low=0.0, high=1.0 + _ROUNDING)
    keys = float_array("order", order)
    size = round(float(lengths.sum()))
    if size < 1 or abs(float(lengths.sum()) - size) > 1e-6:
        raise InvalidInput("sum(inclusion)", float(lengths.sum()), "a whole number from 1")
    items = np.argsort(-keys, kind="stable")
    items = items[lengths[items] > _ROUNDING]
    ends = np.cumsum(lengths[items])
    ends *= size / ends[-1]
    cuts = np.unique(np.concatenate([[0.0, 1.0], ends - np.floor(ends)]))
    wide = np.flatnonzero(np.diff(cuts) > _ROUNDING)
    middles = (cuts[wide] + cuts[wide + 1]) / 2
    points = middles[:, None] + np.arange(size)
    places = np.minimum(np.searchsorted(ends, points, side="right"), len(items) - 1)
    probabilities = cuts[wide + 1] - cuts[wide]
    return items[places].astype(np.int64), probabilities / probabilities.sum()


def draw(policy: SharesPolicy, *, num_rankings: int, rng: Seed) -> Draws:
    """Draw rankings of a policy, and give the log-probability of each.

    Args:
        policy: the policy.
        num_rankings: number N of rankings, from 1.
        rng: a NumPy generator, which advances by N uniforms, or a seed for a new one.

    Raises:
        InvalidInput: num_rankings below 1, or no seed.
    """
    uniforms = generator(rng).random(count("num_rankings", num_rankings))
    ends = np.cumsum(policy.probabilities)
    rows = np.minimum(np.searchsorted(ends, uniforms, side="right"), len(ends) - 1)
    return Draws(policy.rankings[rows], np.log(policy.probabilities)[rows])


def _members(place: int, bound: ShareBound, n: int) -> BoolArray:
    name = f"bounds[{place}]"
    low = number(f"{name}.at_least", bound.at_least, low=0.0, high=1.0)
    number(f"{name}.at_most", bound.at_most, low=low, high=1.0)
    members = indicators(f"{name}.members", bound.members)
    if len(members) != n:
        raise InvalidInput(f"len({name}.members)", len(members), f"{n}, the number of items")
    return members


def _feasible(members: int, n: int, size: int) -> Feasible:
    return Feasible(max(0, size - (n - members)) / size, min(members, size) / size)


def _marginals(
    gains: FloatArray, members: Sequence[BoolArray], lows: FloatArray, highs: FloatArray, size: int
) -> FloatArray:
    """Return the inclusion probabilities: of the least violation, the most relevant."""
    n, groups = len(gains), len(members)
    if not groups:
        chosen = np.zeros(n)
        chosen[np.argsort(-gains, kind="stable")[:size]] = 1.0
        return chosen
    from scipy.sparse import csr_array

    of_groups = csr_array(np.array(members, dtype=np.float64))
    span = float(np.ptp(gains)) or 1.0
    cost = -(gains - gains.min()) / span
    found = _solved(cost, of_groups, lows, highs, size)
    if found is None:
        slack = _least_violation(of_groups, lows, highs, size)
        found = _solved(cost, of_groups, lows - slack, highs + slack, size)
    if found is None:
        raise RuntimeError("no policy has the violation that one was found for")
    found = np.clip(found, 0.0, 1.0)
    found[found < _ROUNDING] = 0.0
    marginals: FloatArray = found * (size / found.sum())
    return marginals


def _solved(
    cost: FloatArray, groups: csr_array, lows: FloatArray, highs: FloatArray, size: int
) -> FloatArray | None:
    """Return the solution of the program; None where its bounds contradict each other."""
    # A quarter of what a service of the mesh imports, for targets that few asks have.
    from scipy.optimize import linprog
    from scipy.sparse import vstack

    n = len(cost)
    result = linprog(
        cost,
        A_ub=vstack([groups, -groups]),
        b_ub=np.concatenate([highs, -lows]),
        A_eq=np.ones((1, n)),
        b_eq=[size],
        bounds=(0.0, 1.0),
        method="highs",
        options={"time_limit": _LIMIT_S},
    )
    if result.status == 2:
        return None
    if result.status:
        raise RuntimeError(f"the linear program is not solved: {result.message}")
    solution: FloatArray = result.x
    return solution


def _least_violation(groups: csr_array, lows: FloatArray, highs: FloatArray, size: int) -> FloatArray:
    """Return how far each share has to be outside its bounds, where the sum of that is smallest."""
    from scipy.optimize import linprog
    from scipy.sparse import eye_array, hstack, vstack

    bounds, n = groups.shape
    spare = eye_array(bounds)
    result = linprog(
        np.concatenate([np.zeros(n), np.ones(bounds)]),
        A_ub=vstack([hstack([groups, -spare]), hstack([-groups, -spare])]),
        b_ub=np.concatenate([highs, -lows]),
        A_eq=np.concatenate([np.ones(n), np.zeros(bounds)])[None, :],
        b_eq=[size],
        bounds=[(0.0, 1.0)] * n + [(0.0, None)] * bounds,
        method="highs",
        options={"time_limit": _LIMIT_S},
    )
    if result.status:
        raise RuntimeError(f"the linear program is not solved: {result.message}")
    slack: FloatArray = np.maximum(result.x[n:], 0.0) + _ROUNDING * math.sqrt(size)
    return slack
