"""Whether one system is better than another on the same queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from evenmesh_core.arrays import FloatArray, float_array, indicators, same_length
from evenmesh_core.intervals import BootstrapInterval, BootstrapMethod, mean_with_resamples
from evenmesh_core.seeds import Seed

_ROUNDING = 1e-12  # relative difference up to which two values, or two means, count as equal


@dataclass(frozen=True)
class McNemar:
    """McNemar's test of two systems that are right or wrong on the same queries."""

    only_first: int
    """Number of queries that the first alone gets right."""
    only_second: int
    """Number of queries that the second alone gets right."""
    both: int
    """Number of queries that both get right."""
    neither: int
    """Number of queries that both get wrong."""
    p_value: float
    """Two-sided and exact, in (0, 1]; 1 where the systems never differ."""


def mcnemar(first: ArrayLike, second: ArrayLike) -> McNemar:
    """Test whether two systems are right equally often.

    If they are, the queries on which they differ fall to either like tosses of a fair coin; the p-value is
    the binomial distribution's own, without the χ² approximation.

    Args:
        first: vector [Q] of 0 and 1 (or booleans): whether the first system is right.
        second: vector [Q] of the second system, for the same queries.

    Source: McNemar 1947; Salemi & Zamani 2025, §5 tests with it.

    Raises:
        InvalidInput: not vectors of 0 and 1 of the same length.
    """
    one, other = indicators("first", first), indicators("second", second)
    same_length("first", one, "second", other)
    only_first, only_second = int((one & ~other).sum()), int((other & ~one).sum())
    p_value = 1.0
    if only_first + only_second > 0:
        from scipy.stats import binomtest  # a third of a second to import

        p_value = min(float(binomtest(only_first, only_first + only_second, 0.5).pvalue), 1.0)
    return McNemar(only_first, only_second, int((one & other).sum()), int((~one & ~other).sum()), p_value)


def holm(p_values: ArrayLike) -> FloatArray:
    """Adjust the p-values of a family of tests, so that any false finding among them is as rare as one says.

    The i-th smallest of m is multiplied by m − i + 1, made no smaller than those before it, and at most 1.
    Rejecting what stays at or below a level keeps the probability of any false rejection there, whatever
    the dependence of the tests.

    Args:
        p_values: vector [m] in [0, 1]; ``nan`` where a test has none: it is not part of the family.

    Returns:
        Vector [m] in the same order, ``nan`` where the p-value is.

    Source: Holm 1979.

    Raises:
        InvalidInput: not a non-empty vector in [0, 1].
    """
    given = float_array("p_values", p_values, low=0.0, high=1.0, undefined=True)
    adjusted = np.full(len(given), np.nan)
    known = np.flatnonzero(~np.isnan(given))
    order = known[np.argsort(given[known], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(given[order] * factors))
    return adjusted


@dataclass(frozen=True)
class PairedBootstrap:
    """Difference of two systems over the same queries."""

    difference: BootstrapInterval
    """Mean of first − second over the queries where both are defined, with its interval."""
    p_value: float
    """Two-sided, in (0, 1]; ``nan`` with fewer than two such queries."""


def paired_bootstrap(
    first: ArrayLike,
    second: ArrayLike,
    *,
    level: float = 0.95,
    method: BootstrapMethod = "bca",
    num_resamples: int = 2000,
    rng: Seed,
    check: Callable[[], None] | None = None,
) -> PairedBootstrap:
    """Compare two systems by the mean of their differences, query by query.

    If the systems were alike, the differences would have mean 0: they are shifted to that, and the p-value is
    the share of their resamples whose mean lies at least as far from 0 as the mean observed, (1 + such
    resamples) / (1 + resamples), so never 0. The interval comes from the same resamples. Values of a query
    that differ by rounding alone, at most 1e-12 of the larger, are alike.

    Args:
        first: vector [Q] of values of the first system; ``nan`` where undefined.
        second: vector [Q] of values of the second system for the same queries.
        level: confidence level of the interval, in (0, 1).
        method: "bca" or "percentile".
        num_resamples: number of resamples, from 100.
        rng: a NumPy generator, or a seed for a new one.
        check: called regularly while resampling; an error that it raises ends the computation.

    Source: Efron & Tibshirani 1993, §16.4; Sakai 2006 for retrieval.

    Raises:
        InvalidInput: no values, lengths that differ, an infinite value, or an option out of range.
    """
    one = float_array("first", first, undefined=True)
    other = float_array("second", second, undefined=True)
    same_length("first", one, "second", other)
    gaps = one - other
    gaps[np.abs(gaps) <= _ROUNDING * np.maximum(np.abs(one), np.abs(other))] = 0.0
    difference, means = mean_with_resamples(
        gaps, level=level, method=method, num_resamples=num_resamples, rng=rng, check=check
    )
    if len(means) == 0:
        return PairedBootstrap(difference, float("nan"))
    away = np.abs(means - difference.value)
    as_far = int(np.count_nonzero(away >= abs(difference.value) * (1.0 - _ROUNDING)))
    return PairedBootstrap(difference, (1 + as_far) / (1 + len(means)))
