"""Running moments against two-pass statistics, and the interval against the t table."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.evaluator.moments import Moments

_VALUES = st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), max_size=40)


def test_nothing_has_no_mean() -> None:
    estimate = Moments.of([None, None]).estimate()
    assert (estimate.mean, estimate.low, estimate.high) == (None, None, None)
    assert (estimate.count, estimate.undefined) == (0, 2)


def test_one_value_has_no_interval() -> None:
    estimate = Moments.of([0.25]).estimate()
    assert (estimate.mean, estimate.low, estimate.high, estimate.count) == (0.25, None, None, 1)


def test_interval_is_students() -> None:
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
