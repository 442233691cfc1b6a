"""Uncertainty of a study's numbers: bootstrap intervals over queries, and score intervals of proportions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike

from evenmesh_core.arrays import IntArray
from evenmesh_core.intervals import (
    BootstrapInterval,
    BootstrapMethod,
    CommonAreas,
    CurveMethod,
    CurvePoints,
    TradeoffIntervals,
    bootstrap_over_queries,
    common_areas,
    mean_interval,
    student_interval,
    tradeoff_intervals,
)
from evenmesh_core.proportions import paired_difference_interval, wilson_interval
from evenmesh_core.significance import McNemar, PairedBootstrap, holm, mcnemar, paired_bootstrap
from evenmesh_core.sparse_means import (
    LEAST_DIFFERING,
    differing_from,
    sparse_interval,
    sparse_p_value,
    too_few,
)

UNIT: Final = (0.0, 1.0)
"""The range of most measures."""
UPWARD: Final = (0.0, float("inf"))
"""The range of counts, times and gains."""

_MOST_LEFT_OUT: Final = 1_000
LEAST_BOOTSTRAPPED: Final = 30
"""Fewest queries at which BCa holds a mean as often as Student's t does (docs/science/coverage.md)."""

COMPARISON_NOTE: Final = (
    "p-values are two-sided. The last column adjusts them for the number of comparisons of a measure (Holm): "
    "McNemar's where there is one, else the paired one. Intervals are of each difference alone: Tango's "
    "score interval where every value is 0 or 1; else none with fewer than 12 queries that differ; "
    "Student's t after two queries more, at the largest difference up and down, where at least half do not "
    "differ or of fewer than 30 queries; else the paired bootstrap's. A paired p-value is of Student's t "
    "where that interval is, 1 where no query differs, none where there is no interval otherwise, and "
    "else the bootstrap's."
)
"""How p-values and intervals of comparisons are computed."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """How intervals are computed. The same settings give the same intervals, whatever else is computed."""

    level: float = 0.95
    """Confidence level, in (0, 1)."""
    num_resamples: int = 2000
    method: BootstrapMethod = "bca"
    seed: int = 0

    def mean(
        self, name: str, values: ArrayLike, *, within: tuple[float, float] = (-np.inf, np.inf)
    ) -> BootstrapInterval:
        """Return the mean of one value for each query; ``nan`` is undefined and left out.

        With fewer than 30 values it is Student's t interval, which holds the true mean more often there.
        Where more than half of the values are the same and fewer than 12, or none, are others, there is no
        interval, because none holds it often enough.

        Args:
            name: what is estimated; its random numbers depend on it.
            values: vector [Q].
            within: range that the measure can have; limits beyond it, which few values give, are cut there.
        """
        return _cut(self._mean(name, values), within)

    def _mean(self, name: str, values: ArrayLike) -> BootstrapInterval:
        array = np.asarray(values, dtype=np.float64)
        known = array[~np.isnan(array)]
        if len(known) >= 2:
            others = differing_from(float(np.median(known)), known)
            few = others < LEAST_DIFFERING and 2 * others < len(known)
            if few or len(known) < LEAST_BOOTSTRAPPED:
                found = student_interval(values, level=self.level)
                why = too_few(others, len(known)) if others else f"all {len(known):,} queries are alike"
                return replace(found, low=np.nan, high=np.nan, missing=why) if few else found
        return mean_interval(
            values,
            level=self.level,
            method=self.method,
            num_resamples=self.num_resamples,
            rng=self._rng(name),
        )

    def share(self, name: str, values: ArrayLike) -> BootstrapInterval:
        """Return the mean of an outcome in [0, 1] of each query; ``nan`` is undefined and left out.

        Where every value is 0 or 1 the interval is Wilson's score interval, because a bootstrap says of an
        outcome that never came that it never comes.

        Args:
            name: as :meth:`mean`.
            values: vector [Q].
        """
        array = np.asarray(values, dtype=np.float64)
        known = array[~np.isnan(array)]
        if len(known) == 0 or not np.isin(known, (0.0, 1.0)).all():
            return self.mean(name, values, within=UNIT)
        low, high = wilson_interval(int(known.sum()), len(known), level=self.level)
        undefined = len(array) - len(known)
        return BootstrapInterval(float(known.mean()), low, high, self.level, "score", len(known), undefined)

    def statistic(
        self, name: str, queries: Sequence[Hashable], statistic: Callable[[IntArray], float]
    ) -> BootstrapInterval:
        """Return a statistic of points of queries, with a percentile interval, which needs no jackknife."""
        return bootstrap_over_queries(
            queries,
            statistic,
            level=self.level,
            method="percentile",
            num_resamples=self.num_resamples,
            rng=self._rng(name),
        )

    def ratio(
        self, name: str, queries: Sequence[Hashable], ratio: Callable[[IntArray], float], *, counted: int
    ) -> BootstrapInterval:
        """Return a ratio of counts with a percentile interval; none where fewer than 12 are its denominator.

        Of 60 questions of which 7 are counted, the interval held the true ratio in 86 % of data sets. Of an
        outcome that never came, or always, it says that it never does, or always: then there is none either.

        Args:
            name: as :meth:`mean`.
            queries: the query of each point.
            ratio: of the points at some indices.
            counted: points that its smallest denominator counts.
        """
        found = self.statistic(name, queries, ratio)
        if counted < LEAST_DIFFERING:
            why = f"only {counted} of {len(queries):,} answers are wrong"
        elif found.low == found.high:
            why = "all resamples are alike"
        else:
            return found
        return replace(found, low=np.nan, high=np.nan, missing=why)

    def tradeoff(self, name: str, points: CurvePoints) -> TradeoffIntervals:
        """Return slope and area of y over x, for points of queries.

        With fewer than 30 queries, of which BCa holds too few, the intervals are Student's t by the spread of
        the resamples (docs/science/coverage.md). BCa evaluates all points once more for each query; past
        1,000 queries, where it hardly differs, the interval is by percentiles and says so.
        """
        found = tradeoff_intervals(
            points.queries,
            points.x,
            points.y,
            dials=points.dials,
            level=self.level,
            method=self._method([points]),
            num_resamples=self.num_resamples,
            rng=self._rng(name),
        )
        return replace(found, auc=_cut(found.auc, UNIT))

    def areas(self, name: str, systems: Sequence[CurvePoints]) -> CommonAreas:
        """Return the areas under the curves of systems over the range that all of them cover.

        Args:
            name: as :meth:`mean`.
            systems: the points of each.
        """
        found = common_areas(
            systems,
            level=self.level,
            method=self._method(systems),
            num_resamples=self.num_resamples,
            rng=self._rng(name),
        )
        return replace(found, areas=tuple(_cut(area, UNIT) for area in found.areas))

    def paired(self, name: str, first: ArrayLike, second: ArrayLike) -> PairedBootstrap:
        """Return the mean difference of two systems on the same queries.

        Where every value is 0 or 1, and not all are the same, the interval is Tango's score interval: that of
        a bootstrap excludes a true difference of 0 too often where few queries differ. Where at least half of
        other differences are 0, and with fewer than 30 queries, it is
        :func:`~evenmesh_core.sparse_means.sparse_interval`, and the p-value is of that interval. With fewer
        than 12 queries that differ there is neither, because none holds the true mean often enough: of five
        queries alike but for chance a bootstrap finds every sixth pair different at 0.05.
        """
        found = paired_bootstrap(
            first,
            second,
            level=self.level,
            method=self.method,
            num_resamples=self.num_resamples,
            rng=self._rng(name),
        )
        test = right_or_wrong(first, second)
        if test is None:
            gaps = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
            queries = found.difference.defined
            differing = differing_from(0.0, gaps[~np.isnan(gaps)])
            if differing < LEAST_DIFFERING or 2 * differing <= queries or queries < LEAST_BOOTSTRAPPED:
                return PairedBootstrap(sparse_interval(gaps, level=self.level), sparse_p_value(gaps))
            return found
        pairs = test.only_first + test.only_second + test.both + test.neither
        low, high = paired_difference_interval(test.only_first, test.only_second, pairs, level=self.level)
        return replace(found, difference=replace(found.difference, low=low, high=high, method="score"))

    def _method(self, systems: Sequence[CurvePoints]) -> CurveMethod:
        queries = len({query for one in systems for query in _measured(one)})
        if queries < LEAST_BOOTSTRAPPED:
            return "t"
        return "percentile" if queries > _MOST_LEFT_OUT else self.method

    def _rng(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, crc32(name.encode())])


def _cut(interval: BootstrapInterval, within: tuple[float, float]) -> BootstrapInterval:
    """Return the interval, cut to the range that the measure can have."""
    low, high = np.clip([interval.low, interval.high], *within).tolist()
    return replace(interval, low=low, high=high)


def _measured(points: CurvePoints) -> Iterable[Hashable]:
    """Yield the query of each point that has both coordinates."""
    known = ~np.isnan(np.asarray(points.x, dtype=np.float64) + np.asarray(points.y, dtype=np.float64))
    return (query for query, one in zip(points.queries, known.tolist(), strict=True) if one)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measure of two systems on the queries where both have it."""

    measure: str
    first: str
    second: str
    alpha: float | None
    difference: BootstrapInterval
    """Mean of first minus second; with Tango's score interval where McNemar's test is given, else with the
    paired bootstrap's."""
    p_value: float
    """Two-sided, of the paired bootstrap, or of the interval where that is Student's; ``nan`` without one."""
    mcnemar: McNemar | None = None
    """McNemar's test, where every value is 0 or 1, and not all are the same."""
    p_holm: float = float("nan")
    """p-value to decide by, McNemar's where there is one, adjusted for the family; see :func:`adjusted`."""


def compare(
    bootstrap: Bootstrap,
    measure: str,
    first: tuple[str, Mapping[str, float]],
    second: tuple[str, Mapping[str, float]],
    alpha: float | None = None,
) -> Comparison | None:
    """Compare two systems; None where they share no query with a defined value.

    Args:
        bootstrap: how intervals are computed.
        measure: what is compared.
        first: name of the one system, and its value of each query.
        second: name of the other, and its value of each query.
        alpha: the fairness dial of both.
    """
    queries = [
        query
        for query, value in first[1].items()
        if not np.isnan(value) and not np.isnan(second[1].get(query, np.nan))
    ]
    if not queries:
        return None
    one = np.array([first[1][query] for query in queries])
    other = np.array([second[1][query] for query in queries])
    paired = bootstrap.paired(f"{measure} {first[0]} {second[0]} {alpha}", one, other)
    return Comparison(
        measure,
        first[0],
        second[0],
        alpha,
        paired.difference,
        paired.p_value,
        right_or_wrong(one, other),
    )


def right_or_wrong(first: ArrayLike, second: ArrayLike) -> McNemar | None:
    """Return McNemar's test; None unless every defined pair is of 0 and 1, and not all are the same."""
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    defined = ~(np.isnan(one) | np.isnan(other))
    one, other = one[defined], other[defined]
    if set(np.concatenate([one, other]).tolist()) != {0.0, 1.0}:
        return None
    return mcnemar(one == 1.0, other == 1.0)


def adjusted(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Adjust the p-values of a study's comparisons by Holm's method; each measure is a family."""
    families: dict[str, list[int]] = {}
    for place, one in enumerate(comparisons):
        families.setdefault(one.measure, []).append(place)
    found = list(comparisons)
    for places in families.values():
        for place, p_value in zip(places, holm([_deciding(found[at]) for at in places]), strict=True):
            found[place] = replace(found[place], p_holm=float(p_value))
    return tuple(found)


def _deciding(comparison: Comparison) -> float:
    return comparison.p_value if comparison.mcnemar is None else comparison.mcnemar.p_value


def by_query(queries: Sequence[str], values: ArrayLike) -> dict[str, float]:
    """Return the mean of each query's questions: samples of a query do not count as queries."""
    gathered: dict[str, list[float]] = {}
    for query, value in zip(queries, np.asarray(values, dtype=np.float64).tolist(), strict=True):
        gathered.setdefault(query, []).append(value)
    return {query: sum(found) / len(found) for query, found in gathered.items()}


def bootstrap_mean(
    bootstrap: Bootstrap,
    label: str,
    queries: Sequence[str],
    values: ArrayLike,
    *,
    within: tuple[float, float],
) -> BootstrapInterval:
    """Return the mean over queries, each the mean of its samples, with limits in the measure's range."""
    return bootstrap.mean(label, list(by_query(queries, values).values()), within=within)


def bootstrap_share(
    bootstrap: Bootstrap, label: str, queries: Sequence[str], values: ArrayLike
) -> BootstrapInterval:
    """Return the mean of an outcome in [0, 1] over queries, each the mean of its samples."""
    return bootstrap.share(label, list(by_query(queries, values).values()))
