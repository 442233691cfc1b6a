"""Shares of groups: the linear program, its decomposition, and draws from it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenmesh_core.errors import InvalidInput
from evenmesh_core.group_shares import REACHED, ShareBound, decompose, draw, shares_policy

property_test = settings(derandomize=True, deadline=None, max_examples=30)


def test_the_better_half_makes_room_by_hand():
    # Two of four places' worth: A has 4 and 3, B has 2 and 1. A at most half: one place each, to 4 and 2.
    policy = shares_policy([4.0, 3.0, 2.0, 1.0], [ShareBound([1, 1, 0, 0], at_most=0.5)], k=2)
    np.testing.assert_allclose(policy.inclusion, [1, 0, 1, 0], atol=1e-9)
    assert policy.rankings.tolist() == [[0, 2]]
    assert policy.probabilities.tolist() == [1.0]
    assert (policy.relevance, policy.best_relevance) == (pytest.approx(6.0), 7.0)
    assert policy.kept.all()


def test_a_share_between_two_rankings_is_a_mixture_by_hand():
    # A at most 0.7 of two places is 1.4: 4 always, 3 with 0.4, 2 with 0.6.
    policy = shares_policy([4.0, 3.0, 2.0, 1.0], [ShareBound([1, 1, 0, 0], at_most=0.7)], k=2)
    np.testing.assert_allclose(policy.inclusion, [1, 0.4, 0.6, 0], atol=1e-9)
    assert policy.rankings.tolist() == [[0, 1], [0, 2]]
    np.testing.assert_allclose(policy.probabilities, [0.4, 0.6], atol=1e-9)
    assert policy.shares.tolist() == [pytest.approx(0.7)]
    assert policy.disparity == pytest.approx((1 + 0.16 + 0.36) / 2)


def test_without_bounds_the_best_are_shown():
    policy = shares_policy([1.0, 3.0, 2.0], [], k=2)
    assert policy.rankings.tolist() == [[1, 2]]
    assert policy.relevance == policy.best_relevance == 5.0


def test_a_bound_that_cannot_be_kept_is_reported_with_what_can():
    # One item of the group in a context of four: at most a quarter.
    policy = shares_policy([5.0, 4.0, 3.0, 2.0, 1.0], [ShareBound([0, 0, 0, 0, 1], at_least=0.5)], k=4)
    assert policy.kept.tolist() == [False]
    assert policy.shares.tolist() == [pytest.approx(0.25)]
    assert policy.feasible == ((0.0, 0.25),)
    np.testing.assert_allclose(policy.inclusion, [1, 1, 1, 0, 1], atol=1e-6)


def test_bounds_that_contradict_each_other_are_missed_by_as_little_as_can_be():
    half = [1, 1, 0, 0]
    policy = shares_policy(
        [4.0, 3.0, 2.0, 1.0], [ShareBound(half, at_most=0.2), ShareBound(half, at_least=0.6)], k=2
    )
    assert 0.2 - REACHED <= policy.shares[0] <= 0.6 + REACHED
    assert not policy.kept.all()
    assert policy.feasible == ((0.0, 1.0), (0.0, 1.0))


@st.composite
def programs(draw_):
    rng = np.random.default_rng(draw_(st.integers(0, 2**32 - 1)))
    n = draw_(st.integers(2, 30))
    k = draw_(st.integers(1, 10))
    groups = rng.integers(0, draw_(st.integers(1, 5)), n)
    bounds = [ShareBound(groups == one, at_most=float(rng.uniform(0.2, 1))) for one in np.unique(groups)]
    return rng.random(n), bounds, k


@property_test
@given(programs())
def test_a_policy_keeps_its_bounds_and_is_its_own_mixture(program):
    gains, bounds, k = program
    n, size = len(gains), min(k, len(gains))
    policy = shares_policy(gains, bounds, k=k)
    assert policy.inclusion.sum() == pytest.approx(size, abs=1e-6)
    assert (policy.inclusion >= 0).all()
    assert (policy.inclusion <= 1 + 1e-6).all()
    for bound, share, kept in zip(bounds, policy.shares, policy.kept, strict=True):
        assert share == pytest.approx(policy.inclusion[np.asarray(bound.members)].sum() / size, abs=1e-9)
        assert kept == (share <= bound.at_most + REACHED)
    # The marginals of the mixture are those of the program, and each ranking has an item once.
    assert policy.rankings.shape == (len(policy.probabilities), size)
    assert len(policy.probabilities) <= n
    assert policy.probabilities.sum() == pytest.approx(1)
    assert all(len(set(row)) == size for row in policy.rankings.tolist())
    mixed = np.zeros(n)
    np.add.at(mixed, policy.rankings, policy.probabilities[:, None])
    np.testing.assert_allclose(mixed, policy.inclusion, atol=1e-6)
    assert (np.diff(gains[policy.rankings], axis=1) <= 0).all()  # the most relevant first


@property_test
@given(programs())
def test_no_other_policy_that_keeps_the_bounds_is_more_relevant(program):
    gains, bounds, k = program
    policy = shares_policy(gains, bounds, k=k)
    if not policy.kept.all():
        return
    size = min(k, len(gains))
    rng = np.random.default_rng(0)
    for _ in range(200):
        other = np.zeros(len(gains))
        other[rng.permutation(len(gains))[:size]] = 1
        if all(other[np.asarray(one.members)].sum() <= one.at_most * size for one in bounds):
            assert other @ gains <= policy.relevance + 1e-6


def test_ten_thousand_drawn_rankings_have_the_shares_that_were_promised():
    rng = np.random.default_rng(4)
    gains, groups, draws, k = rng.random(100), rng.integers(0, 4, 100), 10_000, 5
    bounds = [ShareBound(groups == 0, at_most=0.13), ShareBound(groups == 1, at_least=0.47)]
    policy = shares_policy(gains, bounds, k=k)
    assert policy.kept.all()
    drawn = draw(policy, num_rankings=draws, rng=5)
    frequency = np.bincount(drawn.rankings.ravel(), minlength=100) / draws
    error = np.sqrt(policy.inclusion * (1 - policy.inclusion) / draws)
    assert (np.abs(frequency - policy.inclusion) <= 5 * error + 1e-6).all()
    of_ranking = {
        tuple(one): p for one, p in zip(policy.rankings.tolist(), policy.probabilities, strict=True)
    }
    expected = [math.log(of_ranking[tuple(one)]) for one in drawn.rankings[:50].tolist()]
    np.testing.assert_allclose(drawn.log_probabilities[:50], expected)


def test_draws_are_those_of_the_seed():
    policy = shares_policy([4.0, 3.0, 2.0, 1.0], [ShareBound([1, 1, 0, 0], at_most=0.7)], k=2)
    first, again = (draw(policy, num_rankings=20, rng=7).rankings.tolist() for _ in range(2))
    assert first == again
    assert draw(policy, num_rankings=5, rng=7).rankings.tolist() == first[:5]


@pytest.mark.parametrize(
    ("relevance", "bounds", "k", "complaint"),
    [
        ([], [], 1, "relevance is"),
        ([1.0], [], 0, "k is 0"),
        ([1.0], [ShareBound([1, 0])], 1, r"len\(bounds\[0\].members\) is 2"),
        ([1.0], [ShareBound([2])], 1, r"bounds\[0\].members"),
        ([1.0], [ShareBound([1]), ShareBound([1], at_least=1.5)], 1, r"bounds\[1\].at_least is 1.5"),
        ([1.0], [ShareBound([1], at_least=0.5, at_most=0.4)], 1, r"bounds\[0\].at_most is 0.4"),
    ],
)
def test_bad_programs_are_refused(relevance, bounds, k, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        shares_policy(relevance, bounds, k=k)


@pytest.mark.parametrize("inclusion", [[0.5, 0.4], [0.0, 0.0], [1.5, 0.5]])
def test_what_no_rankings_have_is_not_decomposed(inclusion):
    with pytest.raises(InvalidInput):
        decompose(inclusion, [1.0, 0.0])
