"""Bootstrap intervals over queries.

Queries are the units drawn; what is measured several times on one query (once for each α) stays together. The
limits are those of ``scipy.stats.bootstrap`` to the last digit, from the same draws of the same generator. It
is not called because its BCa takes time and memory that grow with the square of the number of queries, and
because one resample without a value leaves it without an interval.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri, stdtrit

from evenmesh_core.arrays import FloatArray, IntArray, confidence, count, float_array, same_length
from evenmesh_core.averaged_curves import SAME_X, Grouped, covered, group_points, mean_height
from evenmesh_core.errors import InvalidInput
from evenmesh_core.seeds import Seed, generator
from evenmesh_core.utility import Tradeoff, tradeoff

BootstrapMethod = Literal["bca", "percentile"]
CurveMethod = Literal["bca", "percentile", "t"]
"""Also Student's t interval by the spread of the resamples, for curves over few queries."""

_LEAST_RESAMPLES = 100
_BATCH = 1 << 22  # draws held at a time
_COUNTS_AT_ONCE = 1 << 17  # counts of queries in resamples held at a time
_RESAMPLES_AT_ONCE = 64
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
    """"bca" (bias-corrected and accelerated), "percentile", "t" (Student's), "t+2"
    (:mod:`evenmesh_core.sparse_means`) or "score"."""
    defined: int
    """Number of queries drawn from."""
    undefined: int
    """Number of queries left out because they have no value."""
    undefined_resamples: int = 0
    """Number of resamples left out because the statistic is undefined on them."""
    missing: str = ""
    """Why there are no limits, in a few words, where the data could not support any; else empty."""


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


def student_interval(values: ArrayLike, *, level: float = 0.95) -> BootstrapInterval:
    """Return the mean over queries with Student's t interval, mean ± t · s / √Q.

    For differences most of which are 0 use :func:`evenmesh_core.sparse_means.sparse_interval`.

    Args:
        values: vector [Q], one value a query; ``nan`` where undefined: left out and counted.
        level: confidence level, in (0, 1).

    Returns:
        The interval, with the method "t"; its limits are ``nan`` with fewer than two defined values.

    Source: Student 1908.

    Raises:
        InvalidInput: no values, an infinite one, or a level out of range.
    """
    array = float_array("values", values, undefined=True)
    share = confidence(level)
    known = array[~np.isnan(array)]
    mean = float(known.mean()) if len(known) else np.nan
    half = np.nan
    if len(known) >= 2:
        # By the lower tail: (1 + share) / 2 rounds to 1 where the share is all but 1.
        half = float(-stdtrit(len(known) - 1, (1 - share) / 2) * known.std(ddof=1) / np.sqrt(len(known)))
    undefined = len(array) - len(known)
    return BootstrapInterval(mean, mean - half, mean + half, share, "t", len(known), undefined)


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

    def of_queries(sample: IntArray) -> float:
        return float(statistic(np.concatenate([points_of[query] for query in sample.tolist()])))

    value = float(statistic(np.arange(len(queries))))
    resamples, left_out = _distributions(len(points_of), of_queries, plan, draws)
    return plan.interval(value, resamples, left_out, len(points_of), 0)


def tradeoff_intervals(
    queries: Sequence[Hashable],
    x: ArrayLike,
    y: ArrayLike,
    *,
    dials: Sequence[Hashable] | None = None,
    level: float = 0.95,
    method: CurveMethod = "bca",
    num_resamples: int = 2000,
    rng: Seed,
    check: Callable[[], None] | None = None,
) -> TradeoffIntervals:
    """Return the slope and the area of a tradeoff with bootstrap intervals over queries.

    Slope and area are measured on the same resamples, the area over the range that each resample covers; the
    groups of its averaged curve are those of all points. Takes O(P + (num_resamples + Q) · Q) time for Q
    queries.

    Args:
        queries: vector [P]: the query of each point.
        x: vector [P] as in :func:`evenmesh_core.utility.tradeoff`.
        y: vector [P] as in :func:`evenmesh_core.utility.tradeoff`.
        dials: vector [P] as in :func:`evenmesh_core.utility.tradeoff`.
        level: confidence level, in (0, 1).
        method: "bca", "percentile" or "t".
        num_resamples: number of resamples, from 100.
        rng: a NumPy generator, or a seed for a new one.
        check: called regularly; what it raises ends the computation.

    Returns:
        The intervals as :func:`bootstrap_over_queries` gives them; queries all of whose points are undefined
        are left out and counted.

    Raises:
        InvalidInput: as :func:`evenmesh_core.utility.tradeoff` and :func:`bootstrap_over_queries`.
    """
    fit = tradeoff(x, y, dials=dials)
    same_length("x", np.asarray(x), "queries", queries)
    plan = _plan(level, method, num_resamples, CurveMethod)
    draws = generator(rng)
    everyone = len(set(queries))
    curve = _QueryCurve.of(queries, x, y, dials)
    if curve is None:
        nothing = plan.interval(np.nan, np.empty(0), np.empty(0), 0, everyone)
        return TradeoffIntervals(nothing, nothing, fit)

    def statistics(counts: FloatArray) -> FloatArray:
        averaged = curve.averages(counts)
        heights = curve.level + mean_height(averaged, *covered(averaged))
        return np.stack([curve.slopes(counts), heights], axis=1)

    known = len(curve.queries)
    resamples, left_out = _count_distributions(known, statistics, 2, plan, draws, check)
    slope, auc = (
        plan.interval(value, resamples[:, i], left_out[:, i], known, everyone - known)
        for i, value in enumerate((fit.slope, fit.auc))
    )
    return TradeoffIntervals(slope, auc, fit)


@dataclass(frozen=True)
class CurvePoints:
    """Points of one system's curve, as in :func:`tradeoff_intervals`; vectors [P]."""

    queries: Sequence[Hashable]
    x: ArrayLike
    y: ArrayLike
    dials: Sequence[Hashable] | None = None


@dataclass(frozen=True)
class CommonAreas:
    """Areas under the curves of several systems over the range that all of them cover."""

    low: float
    """Lower end of the common range of x; ``nan`` where there is none."""
    high: float
    """Upper end; ``nan`` where there is none."""
    areas: tuple[BootstrapInterval, ...]
    """Mean height of each system's curve over the range."""
    differences: tuple[BootstrapInterval, ...]
    """The first system's minus each other's, with the interval value ± t · σ √(Q / (Q − 1)): σ of the same
    resamples of queries, t of Q − 1 degrees of freedom."""


def common_areas(
    systems: Sequence[CurvePoints],
    *,
    level: float = 0.95,
    method: CurveMethod = "bca",
    num_resamples: int = 2000,
    rng: Seed,
) -> CommonAreas:
    """Compare areas under curves where all systems have a curve, with bootstrap intervals over queries.

    The range is from the largest of the systems' smallest average x to the smallest of their largest, and is
    the same for all resamples. Queries of any system are drawn, and each system counts those that it has.

    Args:
        systems: the points of each, at least one system.
        level: confidence level, in (0, 1).
        method: "bca", "percentile" or "t".
        num_resamples: number of resamples, from 100.
        rng: a NumPy generator, or a seed for a new one.

    Returns:
        The areas; all ``nan`` where a system has no points or the common range is at most 1e-9 wide.

    Source: ours; see :func:`evenmesh_core.utility.tradeoff`.

    Raises:
        InvalidInput: no systems, or as :func:`tradeoff_intervals`.
    """
    if len(systems) == 0:
        raise InvalidInput("systems", systems, "the points of at least one")
    plan = _plan(level, method, num_resamples, CurveMethod)
    draws = generator(rng)
    fits = [tradeoff(one.x, one.y, dials=one.dials) for one in systems]
    curves = [_QueryCurve.of(one.queries, one.x, one.y, one.dials) for one in systems]
    low = max((fit.auc_from for fit in fits), default=np.nan)
    high = min((fit.auc_to for fit in fits), default=np.nan)
    known = [curve for curve in curves if curve is not None]
    if len(known) < len(systems) or not high - low > SAME_X:
        nothing = plan.interval(np.nan, np.empty(0), np.empty(0), 0, 0)
        return CommonAreas(np.nan, np.nan, (nothing,) * len(systems), (nothing,) * (len(systems) - 1))
    queries = list(dict.fromkeys(query for curve in known for query in curve.queries))
    place = {query: at for at, query in enumerate(queries)}
    columns = [np.array([place[query] for query in curve.queries], dtype=np.int64) for curve in known]

    def statistics(counts: FloatArray) -> FloatArray:
        heights = np.stack(
            [
                curve.level + mean_height(curve.averages(counts[:, column]), low, high)
                for curve, column in zip(known, columns, strict=True)
            ],
            axis=1,
        )
        return np.concatenate([heights, heights[:, :1] - heights[:, 1:]], axis=1)

    values = statistics(np.ones((1, len(queries))))[0]
    resamples, left_out = _count_distributions(len(queries), statistics, len(values), plan, draws)
    areas, differences = [], []
    for i, value in enumerate(values.tolist()):
        if i < len(systems):
            areas.append(plan.interval(value, resamples[:, i], left_out[:, i], len(queries), 0))
        else:
            # Of a difference, BCa and percentiles hold less: 92 to 94 % where this holds 93 to 96.
            differences.append(plan.student(value, resamples[:, i], len(queries)))
    return CommonAreas(low, high, tuple(areas), tuple(differences))


@dataclass(frozen=True)
class _QueryCurve:
    """Sums of each query's points by group, so that a resample is no more than a count for each query."""

    queries: tuple[Hashable, ...]
    level: float
    """The first y, which all are relative to: a level curve stays level to the last digit."""
    sizes: FloatArray
    """Matrix [Q, G] of numbers of points."""
    xs: FloatArray
    """Matrix [Q, G] of sums of x."""
    ys: FloatArray
    """Matrix [Q, G] of sums of y."""
    moments: FloatArray
    """Matrix [Q, 5]: sums of 1, x, y, x² and x · y, of x less their mean."""
    ends: FloatArray
    """Matrix [Q, 2]: smallest and largest x."""

    @classmethod
    def of(
        cls, queries: Sequence[Hashable], x: ArrayLike, y: ArrayLike, dials: Sequence[Hashable] | None
    ) -> _QueryCurve | None:
        """Sum checked points; None where none is defined."""
        across, up = np.minimum(np.asarray(x, dtype=np.float64), 1.0), np.asarray(y, dtype=np.float64)
        known = np.flatnonzero(~(np.isnan(across) | np.isnan(up)))
        if len(known) == 0:
            return None
        across, up = across[known], up[known]
        if dials is not None:
            dials = [dials[point] for point in known.tolist()]
        names, query_of = _group([queries[point] for point in known.tolist()])
        groups = group_points(across, dials)
        shape = (len(names), int(groups.max()) + 1)
        cell = np.ravel_multi_index((query_of, groups), shape)
        level = float(up[0])
        up = up - level

        def by_cell(weights: FloatArray) -> FloatArray:
            sums = np.bincount(cell, weights=weights, minlength=shape[0] * shape[1])
            return sums.astype(np.float64, copy=False).reshape(shape)

        off = across - float(across.mean())  # so that their squares keep their digits
        moments = [
            np.bincount(query_of, weights=one) for one in (np.ones_like(off), off, up, off * off, off * up)
        ]
        ends = np.stack([np.full(shape[0], np.inf), np.full(shape[0], -np.inf)], axis=1)
        np.minimum.at(ends[:, 0], query_of, across)
        np.maximum.at(ends[:, 1], query_of, across)
        first = [queries[int(known[points[0]])] for points in names]
        return cls(
            tuple(first),
            level,
            by_cell(np.ones_like(off)),
            by_cell(across),
            by_cell(up),
            np.stack(moments, axis=1),
            ends,
        )

    def averages(self, counts: FloatArray) -> Grouped:
        """Return the averaged curves [B, G] of queries drawn as often as ``counts`` [B, Q] says."""
        sizes = counts @ self.sizes
        with np.errstate(divide="ignore", invalid="ignore"):
            return Grouped((counts @ self.xs) / sizes, (counts @ self.ys) / sizes)

    def slopes(self, counts: FloatArray) -> FloatArray:
        """Return the least-squares slopes [B], ``nan`` where all x drawn agree to within 1e-9."""
        size, x, y, xx, xy = (counts @ self.moments).T
        drawn = counts > 0
        low = np.where(drawn, self.ends[:, 0], np.inf).min(axis=1)
        high = np.where(drawn, self.ends[:, 1], -np.inf).max(axis=1)
        wide = high - low > SAME_X
        with np.errstate(divide="ignore", invalid="ignore"):
            slopes: FloatArray = np.where(wide, (xy - x * y / size) / (xx - x * x / size), np.nan)
        return slopes


@dataclass(frozen=True)
class _Plan:
    level: float
    method: CurveMethod
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
            elif self.method == "t":
                return replace(self.student(value, resamples, defined), undefined=undefined)
            else:
                low, high = self._limits(value, known, left_out)
        lost = len(resamples) - len(known)
        return BootstrapInterval(value, low, high, self.level, self.method, defined, undefined, lost)

    def student(self, value: float, resamples: FloatArray, defined: int) -> BootstrapInterval:
        """Return Student's interval by the spread of the statistic's resamples [B]."""
        known = resamples[~np.isnan(resamples)]
        half = np.nan
        if len(known) and defined >= 2:
            # Resamples of Q queries vary by (Q − 1) / Q of the variance.
            spread = float(known.std()) * np.sqrt(defined / (defined - 1))
            half = float(-stdtrit(defined - 1, (1 - self.level) / 2) * spread)
        lost = len(resamples) - len(known)
        return BootstrapInterval(value, value - half, value + half, self.level, "t", defined, 0, lost)

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
            # Both by the lower tail: one minus the least tail rounds to 1.
            moved = bias + ndtri(tail) * np.array([1.0, -1.0])
            ends = ndtr(bias + moved / (1.0 - acceleration * moved))
            if np.isnan(ends).any():
                return float("nan"), float("nan")
        low, high = np.quantile(resamples, ends)
        return float(low), float(high)


def _plan(level: float, method: CurveMethod, num_resamples: int, methods: Any = BootstrapMethod) -> _Plan:
    share = confidence(level)
    if method not in get_args(methods):
        raise InvalidInput("method", method, " or ".join(map(repr, get_args(methods))))
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
    statistic: Callable[[IntArray], float],
    plan: _Plan,
    rng: np.random.Generator,
) -> tuple[FloatArray, FloatArray]:
    """Return a statistic of each resample [B], and without each query [Q] if the method needs it."""
    nothing = np.empty(0)
    if queries < 2:
        return nothing, nothing
    resamples = np.array([statistic(rng.integers(0, queries, queries)) for _ in range(plan.num_resamples)])
    if plan.method != "bca":
        return resamples, nothing
    everyone = np.arange(queries)
    return resamples, np.array([statistic(np.delete(everyone, query)) for query in range(queries)])


def _count_distributions(
    queries: int,
    statistics: Callable[[FloatArray], FloatArray],
    number_of_statistics: int,
    plan: _Plan,
    rng: np.random.Generator,
    check: Callable[[], None] | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Return :func:`_distributions` of several statistics of how often each query is drawn.

    ``statistics`` takes counts [B, Q] of resamples to [B, S]. The draws are those of :func:`_distributions`.
    """
    nothing = np.empty((0, number_of_statistics))
    if queries < 2:
        return nothing, nothing
    rows = max(1, min(_RESAMPLES_AT_ONCE, _COUNTS_AT_ONCE // queries))
    found = []
    for start in range(0, plan.num_resamples, rows):
        if check is not None:
            check()
        size = min(rows, plan.num_resamples - start)
        drawn = [np.bincount(rng.integers(0, queries, queries), minlength=queries) for _ in range(size)]
        found.append(statistics(np.array(drawn, dtype=np.float64)))
    resamples = np.concatenate(found)
    if plan.method != "bca":
        return resamples, nothing
    left_out = []
    for start in range(0, queries, rows):
        if check is not None:
            check()
        counts = np.ones((min(rows, queries - start), queries))
        counts[np.arange(len(counts)), start + np.arange(len(counts))] = 0.0
        left_out.append(statistics(counts))
    return resamples, np.concatenate(left_out)
