import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenmesh_core.errors import InvalidInput
from evenmesh_core.plackett_luce import (
    Disparity,
    RelevanceLoss,
    inclusion_probabilities,
    log_weights,
    normalize_scores,
    policy_for,
    sample_rankings,
    targets,
)
from evenmesh_core.plackett_luce.inclusion import integrated

property_test = settings(derandomize=True, deadline=None, max_examples=20)
pools = st.builds(
    lambda seed, n, spread: np.random.default_rng(seed).gamma(spread, size=n),
    st.integers(0, 2**32 - 1),
    st.integers(2, 40),
    st.sampled_from([0.3, 1.0, 5.0]),
)
fractions = st.floats(0, 1)
depths = st.integers(1, 12)


def disparity_at(scores, alpha, k):
    inclusion = inclusion_probabilities(log_weights(scores, alpha), k=k)
    return float(inclusion @ inclusion) / min(k, len(scores))


def test_the_dial_of_one_of_two_by_hand():
    # With k = 1 the better of two has p = 1 / (1 + exp(1 − 2^α)), and EE-D is p² + (1 − p)²: 0.82 at p = 0.9,
    # where 2^α = 1 + ln 9.
    found = policy_for(Disparity(0.82), [3.0, 7.0], [0.2, 0.6], k=1)
    assert found.alpha == pytest.approx(math.log2(1 + math.log(9)), abs=1e-4)
    np.testing.assert_allclose(found.inclusion, [0.1, 0.9], atol=1e-4)
    assert found.relevance == pytest.approx(0.1 * 0.2 + 0.9 * 0.6, abs=1e-4)
    assert found.best_relevance == 0.6
    assert found.reached


def test_the_dial_of_a_loss_by_hand():
    # Of the relevance 0.6 one twelfth is 0.05: 0.2 + 0.4 p = 0.55 at p = 0.875, where 2^α = 1 + ln 7.
    found = policy_for(RelevanceLoss(1 / 12), [3.0, 7.0], [0.2, 0.6], k=1)
    assert found.alpha == pytest.approx(math.log2(1 + math.log(7)), abs=1e-3)
    assert 0.55 <= found.relevance < 0.55 + 5e-5
    assert found.reached


@property_test
@given(pools, depths)
def test_disparity_and_relevance_grow_with_the_dial(scores, k):
    gains = normalize_scores(scores) - 1
    dials = [0.0, 0.3, 1.0, 1.7, 2.5, 4.0, 6.0, 9.0, 20.0, 60.0, 100.0]
    exposures = [inclusion_probabilities(log_weights(scores, alpha), k=k) for alpha in dials]
    assert (np.diff([one @ one for one in exposures]) >= -1e-9).all()
    assert (np.diff([one @ gains for one in exposures]) >= -1e-9).all()


@property_test
@given(pools, depths, fractions)
def test_a_disparity_is_reached_or_the_nearest_that_can_be(scores, k, wanted):
    found = policy_for(Disparity(wanted), scores, scores, k=k)
    low, high = disparity_at(scores, 0.0, k), disparity_at(scores, 100.0, k)
    assert found.disparity == pytest.approx(min(max(wanted, low), high), abs=1e-3)
    assert found.disparity == pytest.approx(disparity_at(scores, found.alpha, k), abs=1e-5)
    assert found.reached == (abs(found.disparity - wanted) <= 1e-3)
    assert 0 <= found.alpha <= 100


@property_test
@given(pools, depths, st.floats(0, 0.5))
def test_no_dial_that_keeps_the_bound_is_more_even(scores, k, loss):
    found = policy_for(RelevanceLoss(loss), scores, scores, k=k)
    least = (1 - loss) * np.sort(scores)[-k:].sum()
    if found.reached:
        assert found.relevance >= least - 1e-3 * found.best_relevance
    for alpha in np.linspace(0, 10, 21):
        inclusion = inclusion_probabilities(log_weights(scores, alpha), k=k)
        if inclusion @ scores >= least:
            assert found.disparity <= disparity_at(scores, alpha, k) + 1e-3
            assert found.reached


@pytest.mark.parametrize(("n", "k"), [(20, 5), (100, 5), (1000, 20)])
@pytest.mark.parametrize("target", [Disparity(0.3), Disparity(0.8), RelevanceLoss(0.02), RelevanceLoss(0.2)])
def test_ten_thousand_sampled_rankings_have_what_was_promised(n, k, target):
    draws = 10_000
    scores = np.sort(np.random.default_rng(n).gamma(1.0, size=n))[::-1]
    found = policy_for(target, scores, scores, k=k)
    assert found.reached
    weights = log_weights(scores, found.alpha)
    rankings = sample_rankings(weights, num_rankings=draws, k=k, rng=11)
    gains = scores[rankings].sum(axis=1)
    assert abs(gains.mean() - found.relevance) < 5 * gains.std(ddof=1) / math.sqrt(draws) + 1e-9
    # The mean of squares of frequencies is too large by their variance, which the exact probabilities give.
    frequency = np.bincount(rankings.ravel(), minlength=n) / draws
    excess = float((found.inclusion * (1 - found.inclusion)).sum()) / draws
    error = 2 * math.sqrt(float((found.inclusion**3 * (1 - found.inclusion)).sum()) / draws)
    assert abs((frequency @ frequency - excess) / k - found.disparity) < (5 * error + 2e-4) / k
    if isinstance(target, Disparity):
        assert found.disparity == pytest.approx(target.value, abs=1e-3)
    else:
        assert found.relevance >= (1 - target.value - 1e-3) * found.best_relevance


@pytest.mark.parametrize(
    ("target", "scores", "k", "alpha", "reached"),
    [
        (Disparity(0.1), [1.0, 2.0, 3.0, 4.0], 2, 0.0, False),  # the most even has k / n = 0.5
        (Disparity(0.5), [1.0, 2.0, 3.0, 4.0], 2, 0.0, True),
        (Disparity(0.9), [1.0, 1.0, 1.0, 1.0], 2, 100.0, False),  # all alike: no dial tells them apart
        (Disparity(1.0), [1.0, 2.0], 2, 0.0, True),  # all are shown
        (Disparity(0.2), [1.0, 2.0], 5, 0.0, False),
        (RelevanceLoss(1.0), [1.0, 2.0, 3.0], 1, 0.0, True),
        (RelevanceLoss(0.0), [1.0, 1.0, 1.0], 1, 0.0, True),
        (RelevanceLoss(0.0), [0.0, 0.0, 0.0], 1, 0.0, True),
    ],
)
def test_the_ends_of_the_dial(target, scores, k, alpha, reached):
    found = policy_for(target, scores, scores, k=k)
    assert (found.alpha, found.reached) == (alpha, reached)


def test_no_loss_at_all_shows_the_best():
    scores = np.random.default_rng(3).gamma(1.0, size=50)
    found = policy_for(RelevanceLoss(0.0), scores, scores, k=5)
    assert found.reached
    assert found.relevance == pytest.approx(found.best_relevance, rel=1e-4)


@pytest.mark.parametrize("number", [0.0, 5.0, 1e300])
def test_equal_items_beside_one_better_one(number):
    scores = np.array([number, number, number, number + max(1.0, number)])
    found = policy_for(Disparity(0.5), scores, normalize_scores(scores) - 1, k=1)
    # p² + (1 − p)² / 3 = 1/2 at p = (1 + √3) / 4 · … solved: 4p² − 2p − 1/2 = 0
    assert found.inclusion[3] == pytest.approx((1 + math.sqrt(3)) / 4, abs=1e-4)


def test_scores_that_rounding_makes_equal_may_differ_in_relevance():
    scores = np.array([1.0, 2e-20, 1e-20])  # the last two are one number beside the first
    found = policy_for(RelevanceLoss(0.1), scores, scores, k=1)
    assert found.reached
    assert found.inclusion[1] == found.inclusion[2]


def counts(monkeypatch):
    """A list whose last number grows with each evaluation."""
    evaluations = []

    def counted(*arguments):
        evaluations[-1] += 1
        return integrated(*arguments)

    monkeypatch.setattr(targets, "integrated", counted)
    return evaluations


@pytest.mark.parametrize(
    ("scores", "k"), [([5, 4, 3, 2, 1, 0.5], 3), ([3, 2, 1], 2), ([1, 0.9, 0.1], 2), ([2, 1.5, 1.4, 0.3], 2)]
)
def test_a_first_dial_that_is_far_too_sharp_is_left(scores, k, monkeypatch):
    # The approximation of few items does not come near the best relevance, however sharp the dial.
    evaluations = counts(monkeypatch)
    for loss in (0.0005, 0.001, 0.002):
        evaluations.append(0)
        found = policy_for(RelevanceLoss(loss), scores, scores, k=k)
        assert found.reached
        assert 1 < found.alpha < 10
    assert max(evaluations) <= 12


@pytest.mark.parametrize("target", [Disparity(0.8), RelevanceLoss(0.02)])
@pytest.mark.parametrize(("n", "k"), [(20, 5), (100, 20), (300, 60)])
def test_few_evaluations_find_a_sharp_dial(target, n, k, monkeypatch):
    # Scores with one far ahead of the rest, whose cut is decided among small ones: dials of 10 to 30.
    evaluations = counts(monkeypatch)
    rng = np.random.default_rng(n)
    for _ in range(40):
        scores = np.exp(rng.normal(size=n))
        evaluations.append(0)
        assert policy_for(target, scores, scores, k=k).reached
    assert max(evaluations) <= 5  # 13 where slopes are those of items that are surely included too
    assert sum(evaluations) / len(evaluations) <= 3.5


@pytest.mark.parametrize(
    ("target", "scores", "relevance", "k", "complaint"),
    [
        (Disparity(1.1), [1.0, 2.0], [0.0, 1.0], 1, "disparity is 1.1"),
        (Disparity(math.nan), [1.0, 2.0], [0.0, 1.0], 1, "disparity is nan"),
        (RelevanceLoss(-0.1), [1.0, 2.0], [0.0, 1.0], 1, "relevance_loss is -0.1"),
        (Disparity(0.5), [1.0, 2.0], [1.0, 0.0], 1, r"relevance\[1\] is 0.0"),
        (Disparity(0.5), [1.0, 1.0], [0.0, 1.0], 1, r"relevance\[1\] is 1.0"),
        (Disparity(0.5), [1.0, 2.0], [-1.0, 1.0], 1, r"relevance\[0\] is -1.0"),
        (Disparity(0.5), [1.0, 2.0], [1.0], 1, r"len\(relevance\)"),
        (Disparity(0.5), [1.0, 2.0], [0.0, 1.0], 0, "k is 0"),
        (Disparity(0.5), [1.0, math.inf], [0.0, 1.0], 1, r"scores\[1\]"),
    ],
)
def test_bad_input_is_refused(target, scores, relevance, k, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        policy_for(target, scores, relevance, k=k)
