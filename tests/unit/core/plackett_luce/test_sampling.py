import math
import tracemalloc

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from evenmesh_core.errors import InvalidInput
from evenmesh_core.plackett_luce import (
    draw_from_scores,
    draw_rankings,
    log_probability,
    log_weights,
    sample_rankings,
)

property_test = settings(derandomize=True, deadline=None, max_examples=50)
engines = pytest.mark.parametrize("engine", ["numpy", "numba"])
policies = st.tuples(
    st.lists(st.floats(-1, 1), min_size=1, max_size=40),
    st.sampled_from([0.0, 1.0, 10.0, 290.0, 310.0, 1e3, 1e15, 1e30]),
    st.booleans(),
).map(lambda drawn: np.array(sorted(drawn[0], reverse=True) if drawn[2] else drawn[0]) * drawn[1])

# Chance of a false alarm for each comparison, had the seeds not been fixed.
SIGNIFICANCE = 1e-4


def draw(weights, num_rankings=1, k=5, rng=0, engine="numpy"):
    return sample_rankings(weights, num_rankings=num_rankings, k=k, rng=rng, engine=engine)


def assert_drawn_from(rankings, expected):
    """Chi-square test of rankings against {ranking: probability}; those expected under 5 times are pooled."""
    counts = dict.fromkeys(expected, 0)
    for ranking in map(tuple, rankings.tolist()):
        counts[ranking] += 1
    means = np.array(list(expected.values())) * len(rankings)
    found = np.array(list(counts.values()))
    rare = means < 5
    assert found[means < 1e-12].sum() == 0
    means = np.append(means[~rare], means[rare].sum())
    found = np.append(found[~rare], found[rare].sum())
    keep = means > 0.5
    means, found = means[keep], found[keep]
    if len(means) > 1:
        assert stats.chisquare(found, means * found.sum() / means.sum()).pvalue > SIGNIFICANCE


@engines
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize(
    "weights",
    [
        [0.0, 0.0, 0.0, 0.0],
        [2.0, 1.5, 1.0, 0.0],
        [0.0, 1.0, 2.0, 1.5],
        [1.0, 40.0, 0.5, 1.2],  # one item holds all but e^-38 of the mass
        [700.0, 0.0, 699.0, 1.0],  # two frames
        [1e30, 0.0, 1e30, 1.0],
        [math.log(5), -1e30, math.log(2), -1e30],
        [1200.0, 600.0, 601.0, 0.0],  # a frame for each level
        [
            600.0,
            301.0,
            299.5,
            299.0,
        ],  # the last two lie beyond the core of the frame that they are drawn from
    ],
)
def test_rankings_follow_the_definition(enumerated, weights, k, engine):
    rankings = draw(weights, 4000, k, rng=20, engine=engine)
    assert_drawn_from(rankings, enumerated(weights, k))


@pytest.mark.parametrize("alpha", [0, 1, 2, 4, 8])
def test_rankings_follow_the_definition_at_the_papers_temperatures(enumerated, alpha):
    weights = log_weights([3.2, 1.1, 2.7, 2.9, 0.4], alpha)
    assert_drawn_from(draw(weights, 6000, 3, rng=alpha), enumerated(weights, 3))


@engines
def test_items_in_the_tail_are_drawn_in_proportion_after_a_dominating_head(engine):
    # 3 items outweigh 1000 light ones by e^200, whose weights are 1 and 3 in turn
    weights = np.concatenate([[200.0, 201.0, 202.0], np.log(np.tile([1.0, 3.0], 500))])
    rankings = draw(weights, 3000, 4, rng=4, engine=engine)
    assert (np.sort(rankings[:, :3]) == [0, 1, 2]).all()
    heavy = int((rankings[:, 3] % 2 == 0).sum())  # items 4, 6, ... weigh 3
    assert stats.binomtest(heavy, 3000, 3 / 4).pvalue > SIGNIFICANCE


@property_test
@given(policies, st.integers(1, 45), st.integers(1, 20), st.integers(0, 2**32))
def test_both_engines_draw_the_same_rankings_of_different_items(weights, k, num_rankings, seed):
    rankings = draw(weights, num_rankings, k, rng=seed)
    n = len(weights)
    assert rankings.shape == (num_rankings, min(k, n))
    assert rankings.min() >= 0
    assert rankings.max() < n
    assert (np.diff(np.sort(rankings, axis=1), axis=1) > 0).all()
    assert np.array_equal(rankings, draw(weights, num_rankings, k, rng=seed, engine="numba"))


@property_test
@given(policies, st.integers(0, 100))
def test_an_item_e_to_the_1000_times_heavier_comes_first(weights, seed):
    drawn = np.asarray(weights)[draw(weights, 5, len(weights), rng=seed)]
    # No item may stand before one that is heavier by 1000 in log-weight.
    later = np.maximum.accumulate(drawn[:, ::-1], axis=1)[:, ::-1]
    assert (later - drawn <= 1000).all()


@engines
@pytest.mark.parametrize("order", [1, -1])
def test_alpha_100_is_the_deterministic_ranking(engine, order):
    scores = np.linspace(0, 1, 50)[::order]
    # The 40th log-weight is 1.2^100, 8e7, and its neighbours are millions away.
    rankings = draw(log_weights(scores, 100), 20, 40, engine=engine)
    assert (rankings == np.argsort(-scores)[:40]).all()


@engines
def test_log_weights_1e30_apart_never_repeat_or_skip(engine):
    weights = np.arange(200)[::-1] * 1e30
    assert (draw(weights, 3, 200, engine=engine) == np.arange(200)).all()


@engines
def test_equal_items_at_1e30_are_drawn_uniformly(engine):
    firsts = draw(np.full(10, 1e30), 5000, 1, rng=8, engine=engine)[:, 0]
    assert stats.chisquare(np.bincount(firsts, minlength=10)).pvalue > SIGNIFICANCE


@engines
def test_weights_that_fall_step_by_step_through_many_frames(engine):
    # Neighbours 1 apart over a span of 1000: each draw is a race among neighbours, whatever the frame.
    weights = np.arange(1000.0)
    draws = 8 if numba.config.DISABLE_JIT else 200  # a second, not minutes
    rankings = draw(weights, draws, 600, rng=2, engine=engine)
    assert (np.diff(np.sort(rankings, axis=1), axis=1) > 0).all()
    # The chance to be overtaken falls by e with each step of distance: ranks stay close.
    assert np.abs(rankings - (999 - np.arange(600))).max() < 30
    first = np.count_nonzero(rankings[:, 0] == 999)
    assert stats.binomtest(first, draws, 1 - math.exp(-1)).pvalue > SIGNIFICANCE


def test_more_than_there_are_gives_all():
    assert np.sort(draw([1.0, 2.0, 3.0], 2, 10)).tolist() == [[0, 1, 2]] * 2


def test_one_item():
    assert draw([5.0], 3, 2).tolist() == [[0]] * 3


def test_the_same_seed_gives_the_same_rankings():
    weights = log_weights(np.random.default_rng(0).normal(size=300), 2)
    first = draw(weights, 50, 5, rng=np.random.default_rng(42))
    assert np.array_equal(first, draw(weights, 50, 5, rng=42))
    assert not np.array_equal(first, draw(weights, 50, 5, rng=43))


def test_a_generator_moves_on():
    rng = np.random.default_rng(1)
    weights = np.zeros(1000)
    assert not np.array_equal(draw(weights, 5, 5, rng=rng), draw(weights, 5, 5, rng=rng))


def test_the_first_rankings_do_not_depend_on_how_many_follow():
    weights = np.linspace(0, 3, 40)
    assert np.array_equal(draw(weights, 3, 5), draw(weights, 100, 5)[:3])


@engines
@pytest.mark.parametrize("alpha", [1, 4, 8])
def test_each_draw_inverts_the_distribution_of_what_is_left(alpha, engine):
    weights = log_weights(np.random.default_rng(alpha).normal(size=30), alpha)
    uniforms = np.random.default_rng(6).random((40, 30))
    for ranking, shares in zip(draw(weights, 40, 30, rng=6, engine=engine), uniforms, strict=True):
        left = sorted(range(30), key=lambda item: weights[item])
        for item, share in zip(ranking, shares, strict=True):
            mass = np.cumsum(np.exp(weights[left] - weights[left].max()))
            assert item == left[int(np.searchsorted(mass / mass[-1], share, side="right"))]
            left.remove(item)


def test_recorded_draws_stay_as_they_are():
    """A change of these is a change of every recorded experiment: it belongs in the changelog."""
    weights = log_weights([0.9, 0.1, 0.5, 0.7, 0.3, 0.2], 2)
    recorded = [[0, 4, 2], [0, 3, 5], [4, 3, 0], [2, 0, 3]]
    assert draw(weights, 4, 3, rng=2024).tolist() == recorded


def test_memory_does_not_grow_with_rankings_times_items():
    n = 200_000
    weights = np.linspace(4.0, 1.0, n)
    tracemalloc.start()
    try:
        draw(weights, 500, 5)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * 8 * n  # 500 rankings of noise would be 500 · 8 · n


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"k": 0}, "k is 0; allowed: whole numbers from 1"),
        ({"k": -3}, "k is -3"),
        ({"k": 2.0}, "k is 2.0"),
        ({"k": True}, "k is True"),
        ({"num_rankings": 0}, "num_rankings is 0"),
        ({"rng": None}, "rng is None; allowed: a NumPy generator, or a seed"),
        ({"rng": -1}, "rng is -1"),
        ({"rng": "7"}, "rng is '7'"),
        ({"engine": "torch"}, "engine is 'torch'; allowed: 'numpy' or 'numba'"),
        ({"log_weights": [1.0, np.inf]}, r"log_weights\[1\] is inf"),
        ({"log_weights": []}, "log_weights is"),
        ({"log_weights": [[1.0]]}, "log_weights.shape"),
    ],
)
def test_bad_input_is_refused(arguments, complaint):
    good = {"log_weights": [1.0, 2.0], "num_rankings": 1, "k": 1, "rng": 0}
    with pytest.raises(InvalidInput, match=complaint):
        sample_rankings(**(good | arguments))


@engines
@property_test
@given(policies, st.integers(1, 45))
def test_draws_come_with_their_log_probabilities(engine, weights, k) -> None:
    draws = draw_rankings(weights, num_rankings=7, k=k, rng=3, engine=engine)
    rankings = draw(weights, num_rankings=7, k=k, rng=3, engine=engine)
    np.testing.assert_array_equal(draws.rankings, rankings)
    expected = log_probability(weights, rankings)
    if engine == "numpy":
        np.testing.assert_array_equal(draws.log_probabilities, expected)
    else:
        np.testing.assert_allclose(draws.log_probabilities, expected, rtol=1e-12, atol=1e-12)


@engines
@property_test
@given(
    policies.map(lambda scores: np.clip(scores, -1e15, 1e15)), st.sampled_from([0.0, 0.5, 1.0, 8.0, 100.0])
)
def test_a_draw_from_scores_is_the_draw_from_their_weights(engine, scores, alpha) -> None:
    draws = draw_from_scores(scores, alpha, num_rankings=7, k=5, rng=3, engine=engine)
    expected = draw_rankings(log_weights(scores, alpha), num_rankings=7, k=5, rng=3, engine=engine)
    np.testing.assert_array_equal(draws.rankings, expected.rankings)
    np.testing.assert_allclose(draws.log_probabilities, expected.log_probabilities, rtol=1e-9, atol=1e-9)


@engines
def test_a_draw_from_scores_advances_a_generator_by_its_uniforms(engine) -> None:
    for scores in ([3.0, 2.0, 1.0], [1.0, 3.0, 2.0]):
        rng, alone = np.random.default_rng(5), np.random.default_rng(5)
        draw_from_scores(scores, 1.0, num_rankings=4, k=2, rng=rng, engine=engine)
        alone.random((4, 2))
        assert rng.random() == alone.random()


@engines
@pytest.mark.parametrize(
    ("scores", "alpha", "complaint"),
    [
        ([], 1.0, "scores"),
        ([1.0, math.nan], 1.0, "scores"),
        ([math.inf, 1.0], 1.0, "scores"),
        ([2.0, 1.0], -0.1, "alpha"),
        ([2.0, 1.0], math.nan, "alpha"),
        ([2.0, 1.0], 100.5, "alpha"),
    ],
)
def test_scores_and_dials_that_make_no_policy_are_refused(engine, scores, alpha, complaint) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        draw_from_scores(scores, alpha, num_rankings=1, k=1, rng=0, engine=engine)
