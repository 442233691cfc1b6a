"""Bootstrap intervals over queries.

Queries are the units drawn; what is measured several times on one query (once for each α) stays together. The
limits are those of ``scipy.stats.bootstrap`` to the last digit, from the same draws of the same generator. It
is not called because its BCa takes time and memory that grow with the square of the number of queries, and
because one resample without a value leaves it without an interval.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from evenmesh_core.arrays import FloatArray, IntArray, count, float_array, number, same_length
from evenmesh_core.errors import InvalidInput
from evenmesh_core.seeds import Seed, generator
from evenmesh_core.utility import Tradeoff, tradeoff

BootstrapMethod = Literal["bca", "percentile"]

_LEAST_RESAMPLES = 100
_BATCH = 1 << 22  # draws held at a time
_ROUNDING = 1e-12  # relative spread up to which resamples count as equal


@dataclass(frozen=True)
class BootstrapInterval:
    """A statistic with its bootstrap interval."""

    value: float
    """The statistic of the data; ``nan`` where undefined."""
    low: float
    """Lower limit; ``nan`` where there is none, see the function that made it."""
    high: float
    """Upper limit; ``nan`` where ``low`` is."""
    level: float
    """Share of such intervals that would hold the true value, in (0, 1)."""
    method: str
    """"bca" (bias-corrected and accelerated) or "percentile"."""
    defined: int
    """Number of queries drawn from."""
    undefined: int
    """Number of queries left out because they have no value."""
    undefined_resamples: int = 0
    """Number of resamples left out because the statistic is undefined on them."""


@dataclass(frozen=True)
class TradeoffIntervals:
    """A tradeoff with intervals over queries for its slope and area."""

    slope: BootstrapInterval
    auc: BootstrapInterval
    fit: Tradeoff
    """The tradeoff of all points."""


def mean_interval(
    values: ArrayLike,
    *,
    level: float = 0.95,
    method: BootstrapMethod = "bca",
    num_resamples: int = 2000,
    rng: Seed,
) -> BootstrapInterval:
    """Return the mean over queries with its bootstrap interval.

    Time O(Q · num_resamples), memory O(Q + num_resamples).

    Args:
        values: vector [Q], one value a query; ``nan`` where undefined: left out and counted.
        level: confidence level, in (0, 1).
        method: "bca" or "percentile".
        num_resamples: number of resamples, from 100.
        rng: a NumPy generator, or a seed for a new one.

    Returns:
        The interval. Its limits are ``nan`` with fewer than two defined values, which have no spread,
        and under "bca" where no resample lies on one side of the mean; they are both the mean where
        all values are equal.

    Source: Efron & Tibshirani 1993, §13.3 (percentile) and §14.3 (BCa).

    Raises:
        InvalidInput: no values, an infinite one, or an option out of range.
    """
    interval, _ = mean_with_resamples(
        values, level=level, method=method, num_resamples=num_resamples, rng=rng
    )
    return interval


def mean_with_resamples(
    values: ArrayLike,
    *,
    level: float,
    method: BootstrapMethod,
    num_resamples: int,
    rng: Seed,
    check: Callable[[], None] | None = None,
) -> tuple[BootstrapInterval, FloatArray]:
    """Return :func:`mean_interval` and the means of its resamples.

    The means are a vector [num_resamples], or an empty one with fewer than two defined values. ``check`` is
    called regularly; an error that it raises ends the computation.
    """
    array = float_array("values", values, undefined=True)
    plan = _plan(level, method, num_resamples)
    draws = generator(rng)
    known = array[~np.isnan(array)]
    queries, undefined = len(known), int(np.isnan(array).sum())
    means, left_out = np.empty(0), np.empty(0)
    if queries >= 2:
        means = np.empty(plan.num_resamples)
        rows = max(1, _BATCH // queries)
        for start in range(0, len(means), rows):
            if check is not None:
                check()
            part = means[start : start + rows]
            part[:] = known[draws.integers(0, queries, (len(part), queries))].mean(axis=1)
        left_out = (known.sum() - known) / (queries - 1)
    value = float(known.mean()) if queries else np.nan
    return plan.interval(value, means, left_out, queries, undefined), means


def bootstrap_over_queries(
    queries: Sequence[Hashable],
    statistic: Callable[[IntArray], float],
    *,
    level: float = 0.95,
    method: BootstrapMethod = "bca",
    num_resamples: int = 2000,
    rng: Seed,
) -> BootstrapInterval:
    """Return any statistic of points that belong to queries with its bootstrap interval over queries.

    Args:
        queries: the query of each of P points.
        statistic: from indices of points, with repeats where a query was drawn more than once, to a number;
            ``nan`` means undefined. Called once for all points, and for each resample, and under "bca" once
            more for each query left out.
        level: confidence level, in (0, 1).
        method: "bca" or "percentile".
        num_resamples: number of resamples, from 100.
        rng: a NumPy generator, or a seed for a new one.

    Returns:
        The interval; ``defined`` counts the queries. Resamples without a value are left out and counted. The
        limits are ``nan`` with fewer than two queries, where the statistic is undefined on all points or on
        every resample, and under "bca" also where it is undefined without one of the queries, where no
        resample lies on one side of its value, and where leaving out a query never changes it; they are both
        its value where all resamples agree to within rounding.

    Source: Efron & Tibshirani 1993, §13.3, §14.3; whole queries as in Kim & Diaz 2025, §5, whose points are
    queries at several α.

    Raises:
        InvalidInput: no points, or an option out of range.
    """
    plan = _plan(level, method, num_resamples)
    draws = generator(rng)
    points_of, _ = _group(queries)

    def of_queries(sample: IntArray) -> tuple[float]:
        return (float(statistic(np.concatenate([points_of[query] for query in sample.tolist()]))),)

    value = float(statistic(np.arange(len(queries))))
    resamples, left_out = _distributions(len(points_of), of_queries, 1, plan, draws)
    return plan.interval(value, resamples[:, 0], left_out[:, 0], len(points_of), 0)


def tradeoff_intervals(
    queries: Sequence[Hashable],
    x: ArrayLike,
    y: ArrayLike,
    *,
    level: float = 0.95,
    method: BootstrapMethod = "bca",
    num_resamples: int = 2000,
    rng: Seed,
    check: Callable[[], None] | None = None,
) -> TradeoffIntervals:
    """Return the slope and the area of a tradeoff with bootstrap intervals over queries.

    Slope and area are measured on the same resamples. Takes O(P · (num_resamples + queries)) time.

    Args:
        queries: vector [P]: the query of each point.
        x: vector [P] as in :func:`evenmesh_core.utility.tradeoff`.
        y: vector [P] as in :func:`evenmesh_core.utility.tradeoff`.
        level: confidence level, in (0, 1).
        method: "bca" or "percentile".
        num_resamples: number of resamples, from 100.
        rng: a NumPy generator, or a seed for a new one.
        check: called before each resample; what it raises ends the computation.

    Returns:
        The intervals as :func:`bootstrap_over_queries` gives them; queries all of whose points are undefined
        are left out and counted.

    Raises:
        InvalidInput: as :func:`evenmesh_core.utility.tradeoff` and :func:`bootstrap_over_queries`.
    """
    fit = tradeoff(x, y)
    same_length("x", np.asarray(x), "queries", queries)
    plan = _plan(level, method, num_resamples)
    draws = generator(rng)
    across, up = np.minimum(np.asarray(x, dtype=np.float64), 1.0), np.asarray(y, dtype=np.float64)
    known = np.flatnonzero(~(np.isnan(across) | np.isnan(up)))
    everyone = len(set(queries))
    if len(known) == 0:
        nothing = plan.interval(np.nan, np.empty(0), np.empty(0), 0, everyone)
        return TradeoffIntervals(nothing, nothing, fit)
    _, query_of = _group([queries[point] for point in known.tolist()])
    order = np.argsort(across[known], kind="stable")
    query_of = query_of[order]
    number_of_queries = int(query_of.max()) + 1
    curve = _WeightedCurve(across[known][order], up[known][order])

    def of_queries(sample: IntArray) -> tuple[float, float]:
        if check is not None:
            check()
        weights = np.bincount(sample, minlength=number_of_queries)[query_of]
        return curve.slope_and_auc(weights.astype(np.float64))

    resamples, left_out = _distributions(number_of_queries, of_queries, 2, plan, draws)
    slope, auc = (
        plan.interval(value, resamples[:, i], left_out[:, i], number_of_queries, everyone - number_of_queries)
        for i, value in enumerate((fit.slope, fit.auc))
    )
    return TradeoffIntervals(slope, auc, fit)


class _WeightedCurve:
    """Points sorted by x once, so that a resample is no more than a weight for each."""

    def __init__(self, x: FloatArray, y: FloatArray) -> None:
        # Relative to the first y, a curve that is level stays level to the last digit in every resample.
        self._level = float(y[0])
        self._x, self._y = x, y - self._level
        self._starts = np.flatnonzero(np.concatenate([[True], x[1:] > x[:-1]]))
        self._places = x[self._starts]

    def slope_and_auc(self, weights: FloatArray) -> tuple[float, float]:
        """Return slope and area as :func:`tradeoff` defines them, each point counted by its weight."""
        sizes = np.add.reduceat(weights, self._starts)
        sums = np.add.reduceat(weights * self._y, self._starts)
        drawn = sizes > 0
        places, means = self._places[drawn], sums[drawn] / sizes[drawn]
        inner = float(np.diff(places) @ (means[1:] + means[:-1])) / 2
        auc = inner + float(places[0] * means[0] + (1.0 - places[-1]) * means[-1])
        slope = np.nan
        if len(places) > 1:
            total = weights.sum()
            x = self._x - (weights @ self._x) / total
            spread = float(weights @ (x * x))
            if spread > 0:
                slope = float((weights * x) @ (self._y - (weights @ self._y) / total)) / spread
        return slope, self._level + auc


@dataclass(frozen=True)
class _Plan:
    level: float
    method: BootstrapMethod
    num_resamples: int

    def interval(
        self, value: float, resamples: FloatArray, left_out: FloatArray, defined: int, undefined: int
    ) -> BootstrapInterval:
        """Take the limits from the statistic's resamples [B] and its values without each query [Q]."""
        known = resamples[~np.isnan(resamples)]
        low = high = float("nan")
        if len(known) and not np.isnan(value):
            if np.ptp(known) <= _ROUNDING * np.abs(known).max():
                low = high = value
            else:
                low, high = self._limits(value, known, left_out)
        lost = len(resamples) - len(known)
        return BootstrapInterval(value, low, high, self.level, self.method, defined, undefined, lost)

    def _limits(self, value: float, resamples: FloatArray, left_out: FloatArray) -> tuple[float, float]:
        tail = (1.0 - self.level) / 2
        ends = np.array([tail, 1.0 - tail])
        if self.method == "bca":
            below = np.count_nonzero(resamples < value) + np.count_nonzero(resamples <= value)
            share = below / (2 * len(resamples))
            pull = left_out.mean() - left_out
            widest = float(np.abs(pull).max())
            if not 0.0 < share < 1.0 or not 0.0 < widest < np.inf:  # nan, too, is not above 0
                return float("nan"), float("nan")
            # Their size says nothing, and powers of numbers far from 1 are infinite or 0.
            pull = np.ldexp(pull, -np.frexp(widest)[1])
            power = float((pull**2).sum()) ** 1.5
            bias, acceleration = ndtri(share), float((pull**3).sum()) / (6 * power)
            moved = bias + ndtri(ends)
            ends = ndtr(bias + moved / (1.0 - acceleration * moved))
            if np.isnan(ends).any():
                return float("nan"), float("nan")
        low, high = np.quantile(resamples, ends)
        return float(low), float(high)


def _plan(level: float, method: BootstrapMethod, num_resamples: int) -> _Plan:
    share = number("level", level)
    if not 0.0 < share < 1.0:
        raise InvalidInput("level", level, "numbers between 0 and 1, neither of them included")
    if method not in get_args(BootstrapMethod):
        raise InvalidInput("method", method, "'bca' or 'percentile'")
    return _Plan(share, method, count("num_resamples", num_resamples, low=_LEAST_RESAMPLES))


def _group(queries: Sequence[Hashable]) -> tuple[list[IntArray], IntArray]:
    """Return the points of each query, queries in order of appearance, and the query of each point."""
    if len(queries) == 0:
        raise InvalidInput("queries", queries, "the query of at least one point")
    names: dict[Hashable, int] = {}
    query_of = np.array([names.setdefault(query, len(names)) for query in queries], dtype=np.int64)
    order = np.argsort(query_of, kind="stable")
    return np.split(order, np.cumsum(np.bincount(query_of))[:-1]), query_of


def _distributions(
    queries: int,
    statistics: Callable[[IntArray], Sequence[float]],
    number_of_statistics: int,
    plan: _Plan,
    rng: np.random.Generator,
) -> tuple[FloatArray, FloatArray]:
    """Return statistics of each resample [B, S], and without each query [Q, S] if the method needs them."""
    nothing = np.empty((0, number_of_statistics))
    if queries < 2:
        return nothing, nothing
    resamples = np.array([statistics(rng.integers(0, queries, queries)) for _ in range(plan.num_resamples)])
    if plan.method == "percentile":
        return resamples, nothing
    everyone = np.arange(queries)
    return resamples, np.array([statistics(np.delete(everyone, query)) for query in range(queries)])
