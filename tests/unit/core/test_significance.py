import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenmesh_core.errors import InvalidInput
from evenmesh_core.intervals import mean_interval
from evenmesh_core.significance import mcnemar, paired_bootstrap

property_test = settings(derandomize=True, deadline=None, max_examples=40)
eighths = st.integers(0, 8).map(lambda number: number / 8)
pairs = st.lists(st.tuples(eighths, eighths), min_size=2, max_size=30)


# --- McNemar


def test_mcnemar_by_hand():
    #        both, only first ×5, only second ×1, neither ×2
    first = [1, 1, 1, 1, 1, 1, 0, 0, 0]
    second = [1, 0, 0, 0, 0, 0, 1, 0, 0]
    found = mcnemar(first, second)
    assert (found.both, found.only_first, found.only_second, found.neither) == (1, 5, 1, 2)
    # six tosses, at least as uneven as 5 to 1: 0, 1, 5 or 6 heads
    assert found.p_value == pytest.approx((1 + 6 + 6 + 1) / 2**6)


def test_systems_that_never_differ_are_not_distinguished():
    assert mcnemar([1, 0, 1], [1, 0, 1]).p_value == 1.0


def test_an_even_split_is_no_evidence():
    assert mcnemar([1, 0, 1, 0], [0, 1, 0, 1]).p_value == pytest.approx(1.0)


@property_test
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_mcnemar_does_not_care_who_is_first(answers):
    first, second = np.array(answers).T
    found, turned = mcnemar(first, second), mcnemar(second, first)
    assert (found.only_first, found.only_second) == (turned.only_second, turned.only_first)
    assert found.p_value == pytest.approx(turned.p_value)
    assert found.both + found.neither + found.only_first + found.only_second == len(answers)
    assert 0.0 < found.p_value <= 1.0


@pytest.mark.parametrize(
    ("first", "second", "complaint"),
    [
        ([1, 0.5], [1, 0], "first is .*a vector of 0 and 1"),
        ([1, 0], [1], r"len\(second\) is 1; allowed: 2"),
        ([], [], "first is"),
        ([1], [math.nan], r"second\[0\] is nan"),
    ],
)
def test_bad_answers_are_refused(first, second, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        mcnemar(first, second)


# --- paired bootstrap


def test_the_difference_is_that_of_the_pairs():
    first, second = [0.9, 0.5, 0.7, 0.6], [0.4, 0.3, 0.8, 0.2]
    found = paired_bootstrap(first, second, rng=3)
    alone = mean_interval([0.9 - 0.4, 0.5 - 0.3, 0.7 - 0.8, 0.6 - 0.2], rng=3)
    assert found.difference.value == pytest.approx((0.5 + 0.2 - 0.1 + 0.4) / 4)
    assert found.difference.low == pytest.approx(alone.low)
    assert found.difference.high == pytest.approx(alone.high)


def test_pairs_tell_more_than_the_two_samples():
    """A small gain on every query is found, though queries differ by far more than the systems."""
    rng = np.random.default_rng(0)
    hard = rng.random(50)
    second = hard
    first = hard + 0.02 + 0.005 * rng.normal(size=50)
    found = paired_bootstrap(first, second, rng=1)
    assert found.p_value == 1 / 2001
    # standard error of the pairs: 0.005 / √50; unpaired it would be √(2 · 1/12 / 50) = 0.058
    assert found.difference.high - found.difference.low < 6 * 0.005 / math.sqrt(50)


def test_the_p_value_by_hand():
    # Differences 0 and 1, shifted to −1/2 and 1/2: resamples have mean −1/2, 0, 1/2 with chances 1/4, 1/2,
    # 1/4, and those at ±1/2, half of them, are as far from 0 as the mean 1/2 observed.
    found = paired_bootstrap([0.0, 1.0], [0.0, 0.0], num_resamples=4000, rng=0)
    assert found.p_value == pytest.approx(1 / 2, abs=4 * math.sqrt(0.25 / 4000))


def test_p_values_under_no_difference_are_even():
    rng = np.random.default_rng(4)
    found = [
        paired_bootstrap(rng.normal(size=30), rng.normal(size=30), num_resamples=200, rng=rng).p_value
        for _ in range(200)
    ]
    # 200 · 0.2 = 40 expected below 0.2, standard deviation √(200 · 0.2 · 0.8) = 5.7
    assert abs(sum(p < 0.2 for p in found) - 40) < 4 * 5.7


def test_the_undefined_are_left_out_in_pairs():
    found = paired_bootstrap([0.5, math.nan, 0.7, 0.2], [0.1, 0.4, math.nan, 0.1], rng=0)
    assert (found.difference.defined, found.difference.undefined) == (2, 2)
    assert found.difference.value == pytest.approx(((0.5 - 0.1) + (0.2 - 0.1)) / 2)


def test_one_pair_has_a_difference_and_no_more():
    found = paired_bootstrap([0.5], [0.1], rng=0)
    assert found.difference.value == pytest.approx(0.4)
    assert math.isnan(found.p_value)
    assert math.isnan(found.difference.low)


def test_the_same_system_is_not_distinguished_from_itself():
    found = paired_bootstrap([0.5, 0.1, 0.7], [0.5, 0.1, 0.7], rng=0)
    assert (found.difference.low, found.difference.value, found.difference.high) == (0.0, 0.0, 0.0)
    assert found.p_value == 1.0


@property_test
@given(pairs, st.sampled_from(["bca", "percentile"]))
def test_exchanging_the_systems_turns_the_sign(values, method):
    first, second = np.array(values).T
    options = {"method": method, "num_resamples": 200}
    found = paired_bootstrap(first, second, rng=2, **options)
    turned = paired_bootstrap(second, first, rng=2, **options)
    assert turned.p_value == found.p_value
    assert turned.difference.value == pytest.approx(-found.difference.value)
    np.testing.assert_allclose(
        [turned.difference.low, turned.difference.high],
        [-found.difference.high, -found.difference.low],
        atol=1e-9,
    )


@property_test
@given(pairs)
def test_p_values_are_probabilities_and_reproduce(values):
    first, second = np.array(values).T
    found = paired_bootstrap(first, second, num_resamples=100, rng=9)
    assert 1 / 101 <= found.p_value <= 1.0
    assert found == paired_bootstrap(first, second, num_resamples=100, rng=9) or math.isnan(
        found.difference.low
    )


@pytest.mark.parametrize(
    ("first", "second", "complaint"),
    [
        ([0.1, 0.2], [0.1], r"len\(second\) is 1"),
        ([], [], "first is"),
        ([math.inf], [0.1], r"first\[0\] is inf"),
    ],
)
def test_bad_pairs_are_refused(first, second, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        paired_bootstrap(first, second, rng=0)


@pytest.mark.parametrize("count", [2, 20])
def test_what_differs_by_rounding_does_not_differ(count):
    found = paired_bootstrap([0.3] * count, [0.1 + 0.2] * count, rng=0)
    assert (found.difference.value, found.p_value) == (0.0, 1.0)
