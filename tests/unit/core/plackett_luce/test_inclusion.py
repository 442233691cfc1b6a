import math

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenmesh_core.errors import InvalidInput
from evenmesh_core.plackett_luce import inclusion_probabilities, log_weights, sample_rankings
from evenmesh_core.plackett_luce.inclusion import _fewer_arrived

property_test = settings(derandomize=True, deadline=None, max_examples=40)
policies = st.tuples(
    st.lists(st.floats(-1, 1), min_size=1, max_size=12), st.sampled_from([0.0, 1.0, 10.0, 500.0, 1e30])
).map(lambda drawn: np.array(drawn[0]) * drawn[1])


def by_enumeration(expected, n):
    inclusion = np.zeros(n)
    for ranking, probability in expected.items():
        inclusion[list(ranking)] += probability
    return inclusion


def test_the_first_item_is_drawn_by_softmax():
    weights = np.log([1.0, 2.0, 3.0])
    np.testing.assert_allclose(inclusion_probabilities(weights, k=1), [1 / 6, 2 / 6, 3 / 6], atol=1e-12)


def test_two_of_three_by_hand():
    # weights 1, 2, 3; item 0 is left out by (1, 2) and (2, 1): 2/6 · 3/4 + 3/6 · 2/3
    weights = np.log([1.0, 2.0, 3.0])
    left_out = [2 / 6 * 3 / 4 + 3 / 6 * 2 / 3, 1 / 6 * 3 / 5 + 3 / 6 * 1 / 3, 1 / 6 * 2 / 5 + 2 / 6 * 1 / 4]
    np.testing.assert_allclose(inclusion_probabilities(weights, k=2), 1 - np.array(left_out), atol=1e-12)


@pytest.mark.parametrize(("n", "k"), [(2, 1), (7, 3), (100, 5), (100, 99), (1000, 70)])
def test_a_uniform_policy_includes_all_alike(n, k):
    np.testing.assert_allclose(inclusion_probabilities(np.full(n, 3.0), k=k), k / n, atol=1e-11)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "weights",
    [
        [0.0, 0.5, 1.0, 1.5, 2.0, 2.5],
        [0.0, 5.0, 10.0, 15.0, 20.0, 25.0],
        [0.0, 50.0, 50.5, 100.0, 100.0, 1.0],
        [1e30, 1e30, 1e15, 1e15, 0.0, 0.5],
        [-1e30, -1e30, -1e30, 3.0, 2.0, 1.0],
        [2.0**100, 1.9**100, 1.2**100, 1.02**100, 1.01**100, 1.0],
        [0.0, 350.0, 351.0, 700.0, 701.0, 1050.0],
        [1.7e308, 1.7e308, -1.7e308, -1.7e308, 0.0, 1.0],
    ],
)
def test_agrees_with_enumeration(enumerated, weights, k):
    expected = by_enumeration(enumerated(weights, k), len(weights))
    np.testing.assert_allclose(inclusion_probabilities(weights, k=k), expected, atol=1e-10)


@property_test
@given(policies, st.integers(1, 13))
def test_sums_to_k_keeps_order_and_stays_in_range(weights, k):
    inclusion = inclusion_probabilities(weights, k=k)
    assert inclusion.sum() == pytest.approx(min(k, len(weights)), abs=1e-9)
    assert inclusion.min() >= 0.0
    assert inclusion.max() <= 1.0
    assert (np.diff(inclusion[np.argsort(weights, kind="stable")]) >= -1e-11).all()


@pytest.mark.parametrize(("n", "k", "alpha"), [(50, 5, 1), (2000, 5, 8), (300, 150, 2)])
def test_agrees_with_a_large_sample(n, k, alpha):
    draws = 10_000
    weights = log_weights(np.random.default_rng(1).normal(size=n), alpha)
    exact = inclusion_probabilities(weights, k=k)
    engine = "numpy" if numba.config.DISABLE_JIT else "numba"  # which then takes minutes
    rankings = sample_rankings(weights, num_rankings=draws, k=k, rng=2, engine=engine)
    found = np.bincount(rankings.ravel(), minlength=n) / draws
    error = np.sqrt(exact * (1 - exact) / draws)
    likely = exact * draws > 20
    assert (np.abs(found - exact)[likely] < 5 * error[likely] + 1e-9).all()
    assert abs(found[~likely].sum() - exact[~likely].sum()) < 5 * math.sqrt(k / draws)


@pytest.mark.parametrize(("n", "k", "alpha"), [(6, 3, 4), (40, 5, 2)])
def test_agrees_with_a_million_rankings(n, k, alpha):
    draws = 10**6
    weights = log_weights(np.random.default_rng(n).normal(size=n), alpha)
    exact = inclusion_probabilities(weights, k=k)
    counts = np.zeros(n)
    rng = np.random.default_rng(3)
    for _ in range(4):
        drawn = sample_rankings(weights, num_rankings=draws // 4, k=k, rng=rng)
        counts += np.bincount(drawn.ravel(), minlength=n)
    # five standard errors, none above 5 · √(1/4 / 1e6) = 0.0025
    assert (np.abs(counts / draws - exact) < 5 * np.sqrt(exact * (1 - exact) / draws) + 1e-9).all()


@pytest.mark.parametrize("k", [2, 20, 60, 118])
def test_the_panels_miss_nothing_that_a_fine_grid_sees(k):
    weights = log_weights(np.random.default_rng(k).normal(size=120), 3)
    grid = np.linspace(-45, 12, 4000)  # trapezoids over log-time, where everything starts and ends at 0
    included = np.zeros(120)
    for times in np.split(grid, 20):
        expected = np.exp(weights - weights.max() + times[:, None])
        others, _ = _fewer_arrived(expected, k)
        included += (expected * np.exp(-expected) * others).sum(axis=0) * (grid[1] - grid[0])
    assert included.sum() == pytest.approx(k, abs=1e-9)
    np.testing.assert_allclose(inclusion_probabilities(weights, k=k), included, atol=1e-10)


def test_ten_thousand_items():
    weights = log_weights(np.random.default_rng(5).normal(size=10_000), 4)
    inclusion = inclusion_probabilities(weights, k=5)
    assert inclusion.sum() == pytest.approx(5, abs=1e-9)
    # For light items the race is over before they start: inclusion is proportional to weight.
    light = np.argsort(weights)[:100]
    ratio = inclusion[light] / np.exp(weights[light])
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-3)


@pytest.mark.parametrize("top", [1, 3, 64, 90, 150, 199])
def test_leave_one_out_counts_against_plain_convolution(top):
    """Through both kinds of convolution: direct, and Fourier from 64 coefficients."""
    expected = np.random.default_rng(top).gamma(0.5, size=(2, 200))
    others, everyone = _fewer_arrived(expected, top)
    for q in range(2):
        arrived = 1 - np.exp(-expected[q])
        for left_out in (0, 57, 199, None):
            counts = np.ones(1)
            for i in range(200):
                if i != left_out:
                    counts = np.convolve(counts, [1 - arrived[i], arrived[i]])
            found = everyone[q] if left_out is None else others[q, left_out]
            assert found == pytest.approx(counts[:top].sum(), abs=1e-12)


@pytest.mark.parametrize("k", [3, 4, 1000])
def test_all_are_included_when_k_is_not_below_n(k):
    assert inclusion_probabilities([1.0, 1e30, -5.0], k=k).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("weights", "k", "complaint"),
    [
        ([1.0], 0, "k is 0"),
        ([1.0], 1.5, "k is 1.5"),
        ([], 1, "log_weights is"),
        ([np.nan], 1, r"log_weights\[0\]"),
    ],
)
def test_bad_input_is_refused(weights, k, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        inclusion_probabilities(weights, k=k)
