"""Means most of whose values are 0: two queries more, and no interval where too few differ."""

import math

import numpy as np
import pytest
from scipy.special import stdtr, stdtrit

from evenmesh_core.errors import InvalidInput
from evenmesh_core.intervals import student_interval
from evenmesh_core.sparse_means import (
    LEAST_DIFFERING,
    LEAST_DIFFERING_GROUPED,
    difference_interval,
    sparse_interval,
    sparse_p_value,
)


def test_the_interval_by_hand() -> None:
    """12 of 16 values are 1, the largest; after 1 and −1 there are 18, with the mean 12/18 and Σx² = 14.

    Σ(x − m)² = 14 − 18 · (2/3)² = 6, so s² = 6 / 17, and the half is t(17) · √(6 / 17 / 18).
    """
    found = sparse_interval([1.0] * 12 + [0.0] * 4)
    half = stdtrit(17, 0.975) * math.sqrt(6 / 17 / 18)
    assert found.value == 12 / 16
    assert (found.low, found.high) == (pytest.approx(2 / 3 - half), pytest.approx(2 / 3 + half))
    assert (found.method, found.defined, found.missing) == ("t+2", 16, "")


def test_no_interval_where_too_few_differ() -> None:
    few = sparse_interval([0.5] * (LEAST_DIFFERING - 1) + [0.0] * 1000 + [math.nan])
    assert math.isnan(few.low)
    assert math.isnan(few.high)
    assert few.missing == "only 11 of 1,011 queries differ"
    assert few.undefined == 1
    assert few.value == pytest.approx(5.5 / 1011)
    assert not math.isnan(sparse_interval([0.5] * LEAST_DIFFERING + [0.0] * 1000).low)


def test_the_p_value_by_hand() -> None:
    """As of the interval: t is (2 / 3) / √(6 / 17 / 18), of 17 degrees of freedom."""
    t = 2 / 3 / math.sqrt(6 / 17 / 18)
    assert sparse_p_value([-1.0] * 12 + [0.0] * 4 + [math.nan]) == pytest.approx(2 * stdtr(17, -t))
    assert math.isnan(sparse_p_value([0.5] * (LEAST_DIFFERING - 1) + [0.0] * 1000))
    assert sparse_p_value([0.0, 0.0]) == 1.0
    assert math.isnan(sparse_p_value([math.nan]))


def test_differences_are_sparse_where_half_of_them_are_0() -> None:
    some = [0.25, -0.5] * 10
    dense, sparse = [*some, *[0.0] * 19], [*some, *[0.0] * 20, math.nan]
    assert difference_interval(dense) == student_interval(dense)
    assert difference_interval(sparse) == sparse_interval(sparse)
    assert difference_interval(sparse, level=0.8) == sparse_interval(sparse, level=0.8)


def test_queries_of_several_values_need_more_that_differ() -> None:
    values, queries = np.repeat([0.5] * LEAST_DIFFERING_GROUPED, 2), np.repeat(range(20), 2).tolist()
    assert not math.isnan(sparse_interval(values, queries=queries).low)
    assert math.isnan(sparse_interval(values[2:], queries=queries[2:]).low)


def test_what_differs_by_rounding_does_not_differ() -> None:
    assert sparse_interval([1e-16] * 50).missing == "only 0 of 50 queries differ"


def test_several_values_of_a_query_tell_no_more_than_the_query() -> None:
    rng = np.random.default_rng(0)
    values = np.where(rng.random(60) < 0.4, rng.normal(size=60), 0.0)
    once = sparse_interval(values)
    thrice = sparse_interval(np.repeat(values, 3), queries=np.repeat(range(60), 3).tolist())
    assert (thrice.low, thrice.high) == (pytest.approx(once.low), pytest.approx(once.high))
    assert thrice.defined == 60


def test_queries_with_more_values_weigh_more() -> None:
    values, queries = [1.0, 1.0, 1.0, 0.0], ["a", "a", "a", "b"]
    assert sparse_interval(values, queries=queries).value == 0.75


def test_the_interval_holds_the_mean_of_the_values() -> None:
    rng = np.random.default_rng(1)
    for skewed in (False, True):
        for _ in range(200):
            values = np.where(rng.random(50) < 0.6, rng.exponential(size=50) if skewed else 1.0, 0.0)
            found = sparse_interval(values)
            assert math.isnan(found.low) or found.low <= found.value <= found.high


def test_nothing_defined_has_no_mean() -> None:
    found = sparse_interval([math.nan, math.nan])
    assert math.isnan(found.value)
    assert (found.missing, found.undefined) == ("", 2)


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidInput, match="level"):
        sparse_interval([0.0], level=1.0)
    with pytest.raises(InvalidInput, match="queries"):
        sparse_interval([0.0, 1.0], queries=["a"])
    with pytest.raises(InvalidInput, match="values"):
        sparse_interval([])


def test_values_that_differ_from_zero_by_rounding_have_the_mean_zero() -> None:
    found = sparse_interval([1e-17, -3e-17, 0.0])
    assert (found.value, found.missing) == (0.0, "only 0 of 3 queries differ")
