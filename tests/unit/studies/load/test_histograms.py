"""Times in HDR histograms."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_studies.load.analysis.histograms import Histogram


@given(st.lists(st.floats(0.001, 3_600_000), min_size=1, max_size=50))
def test_values_keep_three_digits(values: list[float]) -> None:
    found = Histogram.of(values)
    (most,) = found.percentiles([100])
    # Three digits, and the half microsecond of rounding.
    assert most == pytest.approx(max(values), rel=1e-3, abs=1e-3)
    assert found.count == len(values)


def test_decoding_restores_what_was_encoded() -> None:
    again = Histogram.decoded(Histogram.of([1.0, 2.0, 4.0]).encoded())
    assert again.count == 3
    assert again.percentiles([50, 100]) == pytest.approx([2.0, 4.0], rel=1e-3)
    assert again.mean == pytest.approx((1 + 2 + 4) / 3, rel=1e-3)


def test_undefined_values_are_left_out() -> None:
    empty = Histogram.of([math.nan])
    assert empty.count == 0
    assert all(math.isnan(value) for value in [empty.mean, *empty.percentiles([50])])
