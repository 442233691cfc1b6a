import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenmesh_core.errors import InvalidInput
from evenmesh_core.plackett_luce import log_probability

property_test = settings(derandomize=True, deadline=None, max_examples=50)
scales = st.sampled_from([1.0, 10.0, 300.0, 1e3, 1e15, 1e30])
policies = st.tuples(st.lists(st.floats(-1, 1), min_size=1, max_size=5), scales).map(
    lambda drawn: np.array(drawn[0]) * drawn[1]
)


def test_a_ranking_by_hand():
    # weights 1, 2, 3
    weights = np.log([1.0, 2.0, 3.0])
    rankings = [[2, 1, 0], [0, 1, 2]]
    expected = [3 / 6 * 2 / 3 * 1 / 1, 1 / 6 * 2 / 5 * 3 / 3]
    np.testing.assert_allclose(np.exp(log_probability(weights, rankings)), expected, rtol=1e-14)


def test_the_beginning_of_a_ranking_by_hand():
    weights = np.log([1.0, 2.0, 3.0])
    np.testing.assert_allclose(np.exp(log_probability(weights, [[1, 0]])), [2 / 6 * 1 / 4], rtol=1e-14)


def test_a_uniform_policy():
    full = log_probability(np.zeros(5), [[4, 2, 0, 1, 3]])
    np.testing.assert_allclose(full, [-math.log(math.factorial(5))], rtol=1e-14)


def test_one_item_is_certain():
    assert log_probability([3.0], [[0]]).tolist() == [0.0]


@property_test
@given(policies, st.integers(1, 5))
def test_probabilities_of_all_rankings_of_a_length_sum_to_one(weights, length):
    length = min(length, len(weights))
    rankings = list(itertools.permutations(range(len(weights)), length))
    assert np.exp(log_probability(weights, rankings)).sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(
    "weights",
    [
        [0.3, -1.2, 2.0, 0.0],
        [0.0, 400.0, 399.0, 1.0],
        [1e30, 1e30, 0.0, math.log(2)],
        [-1e30, 1e30, -1e30, 1e30],
        [1e3, 0.0, 2e3, 0.5],
        [
            600.0,
            301.0,
            299.5,
            299.0,
        ],  # the last two lie beyond the core of the frame that they are drawn from
    ],
)
@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_agrees_with_the_definition(enumerated, weights, length):
    expected = enumerated(weights, length)
    found = np.exp(log_probability(weights, list(expected)))
    np.testing.assert_allclose(found, list(expected.values()), atol=1e-14)


def test_huge_log_weights_keep_what_can_be_kept():
    weights = [1e30, -1e30, 0.0]
    assert log_probability(weights, [[0, 2, 1]]).tolist() == [0.0]
    assert log_probability(weights, [[2, 0, 1]]).tolist() == [-1e30]
    assert log_probability(weights, [[1, 0, 2]]).tolist() == [-2e30]


@pytest.mark.parametrize("level", [1e30, -1e30, 0.0])
def test_equal_items_share_their_probability_at_any_level(level):
    weights = [level, level, level]
    np.testing.assert_allclose(np.exp(log_probability(weights, [[1, 0, 2]])), [1 / 3 * 1 / 2], rtol=1e-14)
    np.testing.assert_allclose(np.exp(log_probability(weights, [[1]])), [1 / 3], rtol=1e-14)


def test_light_items_behind_a_heavy_one_keep_their_ratio():
    # weights e^1e30, 1, 3: after the first is taken, 3 of 4
    weights = [1e30, 0.0, math.log(3)]
    np.testing.assert_allclose(np.exp(log_probability(weights, [[0, 2]])), [3 / 4], rtol=1e-14)


def test_a_probability_beyond_float64_is_zero_without_warnings():
    with np.errstate(all="raise", under="ignore"):
        assert log_probability([1.7e308, -1.7e308], [[1, 0]]).tolist() == [-np.inf]


@pytest.mark.parametrize("order", ["descending", "shuffled"])
@pytest.mark.parametrize("spread", [1.0, 500.0])
def test_many_items_against_logsumexp(order, spread):
    rng = np.random.default_rng(3)
    weights = rng.normal(size=3000) * spread
    weights = np.sort(weights)[::-1] if order == "descending" else weights
    rankings = np.array([rng.choice(3000, 4, replace=False), np.argsort(-weights)[:4]])
    for ranking, found in zip(rankings, log_probability(weights, rankings), strict=True):
        left = np.ones(3000, dtype=bool)
        expected = 0.0
        for item in ranking:
            expected += weights[item] - np.logaddexp.reduce(weights[left])
            left[item] = False
        assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("rankings", "complaint"),
    [
        ([[0, 1, 0]], r"rankings\[0\] is \[0, 1, 0\]; allowed: each item once, but 0 repeats"),
        ([[0, 3]], r"rankings\[0, 1\] is 3; allowed: item indices 0 to 2"),
        ([[0, -1]], r"rankings\[0, 1\] is -1"),
        ([0, 1], r"rankings.shape is \(2,\)"),
        ([[0.0, 1.0]], "rankings is .*whole numbers"),
        ([[True, False]], "rankings is .*whole numbers"),
        ([[]], "rankings is .*at least one"),
        ([[0, 1], [0]], "rankings is"),
    ],
)
def test_bad_rankings_are_refused(rankings, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        log_probability([1.0, 2.0, 3.0], rankings)


def test_bad_log_weights_are_refused():
    with pytest.raises(InvalidInput, match=r"log_weights\[1\] is -inf"):
        log_probability([1.0, -np.inf], [[0]])
