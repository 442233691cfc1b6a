"""Running moments against two-pass statistics, and the interval against the t table."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_evaluator.reports.moments import KeyedMoments, Moments

_VALUES = st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), max_size=40)


def test_nothing_has_no_mean() -> None:
    estimate = Moments.of([None, None]).estimate()
    assert (estimate.mean, estimate.low, estimate.high) == (None, None, None)
    assert (estimate.count, estimate.undefined) == (0, 2)


def test_one_value_has_no_interval() -> None:
    estimate = Moments.of([0.25]).estimate()
    assert (estimate.mean, estimate.low, estimate.high, estimate.count) == (0.25, None, None, 1)


def test_interval_of_values_without_a_range_is_students() -> None:
    # Values 1, 2, 3, 4: mean 5/2, s² = (9/4 + 1/4 + 1/4 + 9/4) / 3 = 5/3, t(0.975; 3) = 3.182446 from the
    # table.
    estimate = Moments.of([1.0, 2.0, None, 3.0, 4.0]).estimate()
    half = 3.182446 * math.sqrt(5 / 3 / 4)
    assert estimate.mean == 2.5
    assert estimate.low == pytest.approx(2.5 - half, abs=1e-6)
    assert estimate.high == pytest.approx(2.5 + half, abs=1e-6)
    assert (estimate.count, estimate.undefined) == (4, 1)


def test_far_from_zero_nothing_is_lost() -> None:
    # Sums of squares would need 18 digits here; the variance of 0, 1, 2 is 1.
    moments = Moments.of([1e9, 1e9 + 1, 1e9 + 2])
    assert moments.m2 / (moments.count - 1) == 1.0


@given(_VALUES, _VALUES)
def test_merging_equals_one_stream(left: list[float | None], right: list[float | None]) -> None:
    merged = Moments.of(left).merged(Moments.of(right))
    together = left + right
    defined = [value for value in together if value is not None]
    assert merged.count == len(defined)
    assert merged.undefined == len(together) - len(defined)
    if defined:
        assert merged.mean == pytest.approx(statistics.fmean(defined), rel=1e-9, abs=1e-6)
    if len(defined) > 1:
        assert merged.m2 / (len(defined) - 1) == pytest.approx(
            statistics.variance(defined), rel=1e-6, abs=1e-3
        )


def test_an_interval_ends_where_the_values_do() -> None:
    # Values 0 and 1: mean 1/2, t(0.975; 1) = 12.7062, so the interval would be 1/2 ± 6.35.
    estimate = Moments.of([0.0, 1.0]).estimate(0.0)
    assert estimate.low == 0.0
    assert estimate.high == pytest.approx(0.5 + 12.7062 * 0.5, abs=1e-4)


def test_an_interval_in_a_range_has_two_values_more_at_its_ends() -> None:
    # 0, 0.5, 1 and 0, 1: mean 1/2, s² = 1 / 4, t(0.975; 4) = 2.7764, so the half is 0.6208.
    estimate = Moments.of([0.0, 0.5, 1.0]).estimate(0.0, 1.0)
    assert (estimate.low, estimate.mean, estimate.high) == (0.0, 0.5, 1.0)
    # A hundred zeros and 0, 1: mean 1/102, s² = 1/102, t(0.975; 101) = 1.9837.
    estimate = Moments.of([0.0] * 100).estimate(0.0, 1.0)
    assert (estimate.low, estimate.mean) == (0.0, 0.0)
    assert estimate.high == pytest.approx((1 + 1.9837) / 102, abs=1e-5)


def test_a_mean_of_few_values_away_from_the_lowest_has_no_interval() -> None:
    """A provider that 3 of 100 asks show has a mean exposure, and no interval that says how sure it is."""
    estimate = Moments.of([2.0, 1.0, 2.0, *[0.0] * 97]).estimate(0.0)
    assert (estimate.mean, estimate.low, estimate.high) == (pytest.approx(0.05), None, None)
    assert Moments.of([2.0] * 12 + [0.0] * 88).estimate(0.0).high is not None


_KEYED = st.lists(st.tuples(st.sampled_from("abc"), st.floats(-1e6, 1e6), st.floats(0, 1)), max_size=20)


def _keyed(rows: list[tuple[str, float, float]]) -> KeyedMoments:
    columns = np.array([[value, extra] for _, value, extra in rows], dtype=np.float64).reshape(-1, 2)
    return KeyedMoments.of([key for key, _, _ in rows], columns[:, 0], columns[:, 1])


@given(_KEYED, _KEYED, _KEYED)
def test_keyed_moments_are_moments_by_key(
    first: list[tuple[str, float, float]],
    second: list[tuple[str, float, float]],
    third: list[tuple[str, float, float]],
) -> None:
    merged = KeyedMoments.merged([_keyed(first), KeyedMoments.merged([_keyed(second), _keyed(third)])])
    rows = first + second + third
    assert sorted(merged.keys) == sorted({key for key, _, _ in rows})
    for place, key in enumerate(merged.keys):
        expected = Moments.of(value for one, value, _ in rows if one == key)
        count, mean, m2, extra = merged.columns[:, place].tolist()
        assert count == expected.count
        assert mean == pytest.approx(expected.mean, rel=1e-9, abs=1e-6)
        assert m2 == pytest.approx(expected.m2, rel=1e-6, abs=1e-2)
        assert extra == pytest.approx(sum(e for one, _, e in rows if one == key))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1)), max_size=20))
def test_divided_moments_are_those_of_divided_values(rows: list[tuple[str, float]]) -> None:
    divisors = {"a": 0.5, "b": 2.0, "c": 0.0}
    keyed = KeyedMoments.of(
        [key for key, _ in rows], np.array([value for _, value in rows], dtype=np.float64)
    )
    expected = Moments.of(value / divisors[key] if divisors[key] else None for key, value in rows)
    got = keyed.moments(divisors)
    assert (got.count, got.undefined) == (expected.count, expected.undefined)
    assert got.mean == pytest.approx(expected.mean, abs=1e-9)
    assert got.m2 == pytest.approx(expected.m2, abs=1e-9)
