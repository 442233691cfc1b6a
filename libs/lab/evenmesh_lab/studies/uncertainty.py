"""Uncertainty of a study's numbers: bootstrap intervals over queries."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike

from evenmesh_core.arrays import IntArray
from evenmesh_core.intervals import (
    BootstrapInterval,
    BootstrapMethod,
    TradeoffIntervals,
    bootstrap_over_queries,
    mean_interval,
    tradeoff_intervals,
)
from evenmesh_core.significance import McNemar, PairedBootstrap, mcnemar, paired_bootstrap

_MOST_LEFT_OUT: Final = 1_000


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """How intervals are computed. The same settings give the same intervals, whatever else is computed."""

    level: float = 0.95
    """Confidence level, in (0, 1)."""
    num_resamples: int = 2000
    method: BootstrapMethod = "bca"
    seed: int = 0

    def mean(self, name: str, values: ArrayLike) -> BootstrapInterval:
        """Return the mean of one value for each query; ``nan`` is undefined and left out.

        Args:
            name: what is estimated; its random numbers depend on it.
            values: vector [Q].
        """
        return mean_interval(
            values,
            level=self.level,
            method=self.method,
            num_resamples=self.num_resamples,
            rng=self._rng(name),
        )

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

    def tradeoff(self, name: str, queries: Sequence[str], x: ArrayLike, y: ArrayLike) -> TradeoffIntervals:
        """Return slope and area of y over x, for points of queries.

        BCa evaluates all points once more for each query; past 1,000 queries, where it hardly differs, the
        interval is by percentiles and says so.
        """
        many = len(set(queries)) > _MOST_LEFT_OUT
        return tradeoff_intervals(
            queries,
            x,
            y,
            level=self.level,
            method="percentile" if many else self.method,
            num_resamples=self.num_resamples,
            rng=self._rng(name),
        )

    def paired(self, name: str, first: ArrayLike, second: ArrayLike) -> PairedBootstrap:
        """Return the mean difference of two systems on the same queries."""
        return paired_bootstrap(
            first,
            second,
            level=self.level,
            method=self.method,
            num_resamples=self.num_resamples,
            rng=self._rng(name),
        )

    def _rng(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, crc32(name.encode())])


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measure of two systems on the queries where both have it."""

    measure: str
    first: str
    second: str
    alpha: float | None
    difference: BootstrapInterval
    """Mean of first minus second."""
    p_value: float
    """Two-sided, of the paired bootstrap."""
    mcnemar: McNemar | None = None
    """McNemar's test, where every value is 0 or 1, and not all are the same."""


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
    binary = set(np.concatenate([one, other]).tolist()) == {0.0, 1.0}
    return Comparison(
        measure,
        first[0],
        second[0],
        alpha,
        paired.difference,
        paired.p_value,
        mcnemar(one == 1.0, other == 1.0) if binary else None,
    )


def by_query(queries: Sequence[str], values: ArrayLike) -> dict[str, float]:
    """Return the mean of each query's questions: samples of a query do not count as queries."""
    gathered: dict[str, list[float]] = {}
    for query, value in zip(queries, np.asarray(values, dtype=np.float64).tolist(), strict=True):
        gathered.setdefault(query, []).append(value)
    return {query: sum(found) / len(found) for query, found in gathered.items()}


def bootstrap_mean(
    bootstrap: Bootstrap, label: str, queries: Sequence[str], values: ArrayLike
) -> BootstrapInterval:
    """Return the mean over queries, each the mean of its samples."""
    return bootstrap.mean(label, list(by_query(queries, values).values()))
