"""How many queries a paired comparison needs, beside published tables and a simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_core.errors import InvalidInput
from evenmesh_core.sample_size import pairs_for_difference, pairs_for_half_width, power_of_pairs


@pytest.mark.parametrize(
    ("effect", "power", "pairs"), [(0.5, 0.8, 34), (0.2, 0.8, 199), (0.8, 0.8, 15), (0.5, 0.95, 54)]
)
def test_the_numbers_are_those_of_g_power(effect: float, power: float, pairs: int) -> None:
    # Faul et al. 2007, G*Power 3: two-tailed t-test of matched pairs, error probability 0.05
    assert pairs_for_difference(effect, 1.0, power=power) == pairs
    assert pairs_for_difference(-3 * effect, 3.0, power=power) == pairs


def test_power_is_how_often_a_test_finds_the_difference() -> None:
    from scipy.stats import ttest_1samp

    drawn = np.random.default_rng(7).normal(0.3, 1.0, (4_000, 40))
    found = float(np.mean(ttest_1samp(drawn, 0.0, axis=1).pvalue < 0.05))
    assert power_of_pairs(40, 0.3, 1.0) == pytest.approx(found, abs=4 * math.sqrt(0.25 / 4_000))


def test_no_difference_is_found_as_often_as_the_level_says() -> None:
    assert power_of_pairs(20, 0.0, 1.0, level=0.9) == pytest.approx(0.1)
    assert power_of_pairs(10_000, 1.0, 1.0) == 1.0


def test_an_interval_is_as_narrow_as_asked_and_one_query_less_is_too_few() -> None:
    pairs = pairs_for_half_width(0.02, 0.15)
    assert pairs == 219  # 1.9709 · 0.15 / √219 = 0.01998; √218 gives 0.02002
    with pytest.raises(InvalidInput, match="at most 10000000"):
        pairs_for_half_width(1e-9, 1.0)


@given(st.floats(0.05, 2.0), st.floats(0.1, 0.99))
def test_the_number_is_the_smallest_that_has_the_power(effect: float, power: float) -> None:
    pairs = pairs_for_difference(effect, 1.0, power=power)
    assert power_of_pairs(pairs, effect, 1.0) >= power
    assert pairs == 2 or power_of_pairs(pairs - 1, effect, 1.0) < power


@pytest.mark.parametrize(
    ("difference", "deviation", "options", "said"),
    [
        (0.0, 1.0, {}, "difference is 0.0"),
        (1.0, 0.0, {}, "deviation is 0.0"),
        (1.0, -1.0, {}, "deviation is -1.0"),
        (math.nan, 1.0, {}, "difference is nan"),
        (1.0, 1.0, {"level": 1.0}, "level is 1.0"),
        (1.0, 1.0, {"power": 0.05}, "power is 0.05"),
        (1e-9, 1.0, {}, "more than 10000000"),
    ],
)
def test_what_cannot_be_reckoned_is_refused(
    difference: float, deviation: float, options: dict[str, float], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        pairs_for_difference(difference, deviation, **options)
