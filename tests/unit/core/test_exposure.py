import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenmesh_core.errors import InvalidInput
from evenmesh_core.exposure import (
    exposure_bounds,
    exposure_metrics,
    group_exposure,
    position_weights,
    rbp,
    reciprocal_rank,
    system_exposure,
    target_exposure,
    top_k,
)
from evenmesh_core.plackett_luce import inclusion_probabilities, log_probability, log_weights, sample_rankings

property_test = settings(derandomize=True, deadline=None, max_examples=50)


@st.composite
def audits(draw):
    """Rankings of n items, labels with some useful, and k."""
    n = draw(st.integers(1, 7))
    length = draw(st.integers(1, n))
    permutation = st.permutations(range(n)).map(lambda p: p[:length])
    rankings = draw(st.lists(permutation, min_size=1, max_size=6))
    useful = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return np.array(rankings), np.array(useful), draw(st.integers(1, 11))


# --- browsing models


@pytest.mark.parametrize(
    ("browsing", "attention"),
    [
        (top_k(2), [1, 1, 0, 0]),
        (rbp(0.5), [1, 0.5, 0.25, 0.125]),
        (rbp(0.0), [1, 0, 0, 0]),
        (rbp(1.0), [1, 1, 1, 1]),
        (reciprocal_rank, [1, 1 / 2, 1 / 3, 1 / 4]),
        (position_weights([0.9, 0.2, 0.8]), [0.9, 0.2, 0.8, 0]),
    ],
)
def test_attention_by_rank(browsing, attention):
    np.testing.assert_allclose(browsing(np.arange(1, 5)), attention, rtol=1e-15)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: top_k(0), "k is 0"),
        (lambda: rbp(1.5), "patience is 1.5; allowed: finite numbers from 0 to 1"),
        (lambda: rbp(math.nan), "patience is nan"),
        (lambda: position_weights([0.5, 1.1]), r"vector\[1\] is 1.1"),
        (lambda: position_weights([]), "vector is"),
    ],
)
def test_bad_browsing_models_are_refused(make, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        make()


# --- system exposure


def test_exposure_is_the_mean_attention_over_rankings():
    rankings = [[0, 1, 2], [2, 0, 1]]
    assert system_exposure(rankings, 4, top_k(2)).tolist() == [(1 + 1) / 2, (1 + 0) / 2, (0 + 1) / 2, 0]
    np.testing.assert_allclose(
        system_exposure(rankings, 4, rbp(0.5)),
        [(1 + 1 / 2) / 2, (1 / 2 + 1 / 4) / 2, (1 / 4 + 1) / 2, 0],
    )


def test_exposure_of_all_rankings_weighed_by_their_probability_is_the_inclusion_probability():
    weights = log_weights([0.3, 0.9, 0.1, 0.5], 2)
    rankings = np.array(list(itertools.permutations(range(4))))
    probabilities = np.exp(log_probability(weights, rankings))
    exposure = system_exposure(rankings, 4, top_k(2), probabilities=probabilities)
    np.testing.assert_allclose(exposure, inclusion_probabilities(weights, k=2), atol=1e-10)


def test_inclusion_probabilities_are_exposure_under_top_k():
    inclusion = inclusion_probabilities(log_weights([0.3, 0.9, 0.1, 0.5], 2), k=2)
    assert system_exposure(inclusion, 4, top_k(2)).tolist() == inclusion.tolist()


@pytest.mark.parametrize(
    ("rankings", "browsing", "complaint"),
    [
        (np.array([0.5, 0.5, 1.0]), rbp(0.5), "browsing is 'not a top-k model'"),
        (np.array([0.5, 0.5, 1.0]), top_k(1), r"sum\(rankings\) is 2.0; allowed: 1"),
        (np.array([0.5, 1.5]), top_k(2), r"rankings\[1\] is 1.5"),
        (np.array([0.5, 0.5]), top_k(1), r"len\(rankings\) is 2; allowed: 3"),
        ([[0, 1, 3]], top_k(1), r"rankings\[0, 2\] is 3; allowed: item indices 0 to 2"),
        ([[0, 0]], top_k(1), r"rankings\[0\] is \[0, 0\].*0 repeats"),
        ([0, 1], top_k(1), "rankings.shape"),
        ([[0]], lambda ranks: ranks * 2.0, r"browsing\(ranks\)\[0\] is 2.0"),
        ([[0, 1]], lambda ranks: ranks[:1] * 1.0, r"len\(browsing\(ranks\)\) is 1"),
    ],
)
def test_bad_rankings_are_refused(rankings, browsing, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        system_exposure(rankings, 3, browsing)


@pytest.mark.parametrize("probabilities", [[0.5], [0.5, 0.6], [1.5, -0.5], [0.5, math.nan]])
def test_bad_ranking_probabilities_are_refused(probabilities):
    with pytest.raises(InvalidInput, match="probabilities"):
        system_exposure([[0, 1], [1, 0]], 2, top_k(1), probabilities=probabilities)


# --- target exposure (fair-rag equation 6)


@pytest.mark.parametrize(
    ("useful", "k", "of_useful", "of_others"),
    [
        ([1, 1, 0, 0, 0], 3, 1, (3 - 2) / (5 - 2)),  # m < k
        ([1, 1, 1, 0, 0], 3, 1, 0),  # m = k
        ([1, 1, 1, 1, 0], 3, 3 / 4, 0),  # m > k
        ([1, 0, 0, 0, 0], 9, 1, 1),  # k > n
        ([1, 1, 1, 1, 1], 2, 2 / 5, None),  # m = n
        ([0, 0, 0, 0, 0], 2, None, 2 / 5),  # m = 0
    ],
)
def test_target_of_the_machine_user(useful, k, of_useful, of_others):
    expected = [of_useful if u else of_others for u in useful]
    np.testing.assert_allclose(target_exposure(useful, top_k(k)), expected, rtol=1e-14)


def test_target_under_position_bias_is_the_mean_attention_of_the_ranks_occupied():
    target = target_exposure([False, True, True, False], rbp(0.5))
    useful, others = (1 + 1 / 2) / 2, (1 / 4 + 1 / 8) / 2
    np.testing.assert_allclose(target, [others, useful, useful, others])


def test_graded_items_occupy_ranks_by_descending_grade():
    target = target_exposure([0, 2, 1, 2, 0.5], reciprocal_rank)
    np.testing.assert_allclose(target, [1 / 5, (1 + 1 / 2) / 2, 1 / 3, (1 + 1 / 2) / 2, 1 / 4])


@property_test
@given(audits())
def test_target_is_the_mean_over_all_optimal_rankings(audit):
    _, useful, k = audit
    useful = useful[:5]
    optimal = [
        p
        for p in itertools.permutations(range(len(useful)))
        if useful[list(p)].tolist() == sorted(useful)[::-1]
    ]
    np.testing.assert_allclose(
        target_exposure(useful, top_k(k)), system_exposure(optimal, len(useful), top_k(k)), atol=1e-12
    )


@pytest.mark.parametrize("useful", [[], [-1.0, 1.0], [math.nan], [[True]], ["yes"]])
def test_bad_labels_are_refused(useful):
    with pytest.raises(InvalidInput, match="useful_mask"):
        target_exposure(useful, top_k(1))


# --- metrics (fair-rag equations 3, 12, 24)


def test_metrics_by_hand():
    # ε = (1, 1/2, 1/2, 0), ε* = (1, 1/3, 1/3, 1/3) with m = 1, k = 2, n = 4
    metrics = exposure_metrics([[0, 1], [2, 0]], [True, False, False, False], k=2)
    assert metrics.exposure.tolist() == [1, 1 / 2, 1 / 2, 0]
    np.testing.assert_allclose(metrics.target, [1, 1 / 3, 1 / 3, 1 / 3])
    assert metrics.ee_d == pytest.approx(1 + 1 / 4 + 1 / 4)
    assert metrics.ee_r == pytest.approx(1 + 1 / 2 * 1 / 3 + 1 / 2 * 1 / 3)
    assert metrics.ee_l == pytest.approx((1 / 2 - 1 / 3) ** 2 * 2 + (1 / 3) ** 2)
    assert metrics.ee_d_norm == pytest.approx((1 + 1 / 4 + 1 / 4) / 2)
    assert metrics.ee_r_norm == pytest.approx((1 + 1 / 3) / (1 + (2 - 1) ** 2 / (4 - 1)))
    assert metrics.ee_d_bound == 2


def test_the_others_count_in_ee_r_when_few_are_useful():
    """The authors' code leaves ⟨ε, ε*⟩ of the others out and so never reaches its bound."""
    assert exposure_metrics([[0, 1, 2], [0, 2, 1]], [1, 0, 0], k=2).ee_r_norm == pytest.approx(1.0)


@property_test
@given(audits())
def test_the_three_metrics_hang_together(audit):
    rankings, useful, k = audit
    metrics = exposure_metrics(rankings, useful, k=k)
    assert 0 <= metrics.ee_d <= metrics.ee_d_bound + 1e-12
    assert 0 <= metrics.ee_d_norm <= 1
    assert metrics.target.sum() == pytest.approx(min(k, len(useful)))
    if useful.any():
        assert 0 <= metrics.ee_r_norm <= 1
        squared = metrics.ee_d - 2 * metrics.ee_r + metrics.target @ metrics.target
        assert metrics.ee_l == pytest.approx(squared, abs=1e-12)
    else:
        assert math.isnan(metrics.ee_r)
        assert math.isnan(metrics.ee_r_norm)


@property_test
@given(audits(), st.sampled_from([1, 2, 3]))
def test_permuting_the_items_permutes_nothing_else(audit, step):
    rankings, useful, k = audit
    moved = (np.arange(len(useful)) + step) % len(useful)  # item i becomes moved[i]
    relabelled = np.empty_like(useful)
    relabelled[moved] = useful
    before = exposure_metrics(rankings, useful, k=k)
    after = exposure_metrics(moved[rankings], relabelled, k=k)
    np.testing.assert_allclose(after.exposure[moved], before.exposure)
    for name in ("ee_d", "ee_r", "ee_l", "ee_d_norm", "ee_r_norm"):
        assert getattr(after, name) == pytest.approx(getattr(before, name), nan_ok=True)


def test_without_useful_items_relevance_is_undefined_and_disparity_is_not():
    metrics = exposure_metrics([[0, 1]], [0, 0, 0], k=2)
    assert math.isnan(metrics.ee_r)
    assert math.isnan(metrics.ee_r_norm)
    assert metrics.ee_d_norm == 1.0
    np.testing.assert_allclose(metrics.target, 2 / 3)


def test_equal_scores_expose_all_alike_and_are_the_least_disparity_there_is():
    inclusion = inclusion_probabilities(log_weights([7.0] * 6, 8), k=2)
    metrics = exposure_metrics(None, [1, 0, 0, 0, 0, 0], k=2, exposure=inclusion)
    np.testing.assert_allclose(metrics.exposure, 2 / 6)
    assert metrics.ee_d_norm == pytest.approx(6 * (2 / 6) ** 2 / 2)
    # ε* is 1 for the useful and (2 − 1) / (6 − 1) for each of the others
    assert metrics.ee_r == pytest.approx(2 / 6 * 1 + 5 * 2 / 6 * 1 / 5)


def test_where_all_are_useful_no_ranking_is_better_than_another():
    metrics = exposure_metrics([[0, 1], [2, 0]], [1, 1, 1], k=2)
    np.testing.assert_allclose(metrics.target, 2 / 3)
    assert metrics.ee_r == pytest.approx((1 + 1 / 2 + 1 / 2) * 2 / 3)
    assert metrics.ee_r_norm == pytest.approx(1.0)


def test_a_deterministic_ranking_is_of_maximal_disparity():
    assert exposure_metrics([[3, 1, 2, 0]] * 7, [1, 0, 1, 0], k=3).ee_d_norm == 1.0
    assert exposure_metrics([[3, 1, 2, 0]], [1, 0, 1, 0], k=9).ee_d_norm == 1.0


def test_rankings_are_cut_at_k():
    short = exposure_metrics([[0, 1], [2, 3]], [1, 1, 0, 0], k=2)
    long = exposure_metrics([[0, 1, 3, 2], [2, 3, 1, 0]], [1, 1, 0, 0], k=2)
    assert long.ee_d == short.ee_d
    assert long.exposure.tolist() == short.exposure.tolist()


def test_rankings_shorter_than_k():
    metrics = exposure_metrics([[0], [1]], [1, 0, 0], k=2)
    assert metrics.exposure.tolist() == [1 / 2, 1 / 2, 0]
    assert metrics.ee_d_norm == pytest.approx((1 / 4 + 1 / 4) / 2)


def test_under_position_bias_attention_ends_at_k_for_system_and_oracle_alike():
    metrics = exposure_metrics([[0, 1, 2]], [1, 0, 0], k=2, browsing=rbp(0.5))
    assert metrics.exposure.tolist() == [1, 1 / 2, 0]
    np.testing.assert_allclose(metrics.target, [1, (1 / 2 + 0) / 2, (1 / 2 + 0) / 2])
    assert metrics.ee_d_bound == pytest.approx(1 + 1 / 4)
    assert metrics.ee_d == pytest.approx(metrics.ee_d_bound)
    assert metrics.ee_r_norm == pytest.approx(1.0)


def test_exact_exposure_is_the_limit_of_samples():
    weights = log_weights(np.linspace(0, 1, 12), 4)
    useful = np.arange(12) >= 8
    exact = exposure_metrics(None, useful, k=5, exposure=inclusion_probabilities(weights, k=5))
    sampled = exposure_metrics(sample_rankings(weights, num_rankings=20_000, k=5, rng=0), useful, k=5)
    assert sampled.ee_d == pytest.approx(exact.ee_d, abs=0.02)
    assert sampled.ee_r == pytest.approx(exact.ee_r, abs=0.02)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"rankings": None}, "rankings and exposure is 'neither'"),
        ({"exposure": [1.0, 0.0]}, "rankings and exposure is 'both'"),
        ({"useful_mask": None}, "useful_mask is None"),
        ({"k": 0}, "k is 0"),
        ({"rankings": [[0, 1, 1]], "k": 2}, "1 repeats"),
        ({"rankings": [[0, 2]]}, "item indices 0 to 1"),
        ({"rankings": None, "exposure": [1.0]}, r"len\(exposure\) is 1; allowed: 2"),
        ({"rankings": None, "exposure": [1.0, 1.5]}, r"exposure\[1\] is 1.5"),
    ],
)
def test_bad_metrics_input_is_refused(arguments, complaint):
    good = {"rankings": [[0, 1]], "useful_mask": [1, 0], "k": 1}
    with pytest.raises(InvalidInput, match=complaint):
        exposure_metrics(**(good | arguments))


# --- groups and providers


def test_exposure_by_provider_by_hand():
    groups = group_exposure([1.0, 0.5, 0.5, 0.0], [0.5, 0.5, 0.5, 0.5], ["b", "a", "b", "a"])
    assert groups.labels == ("a", "b")
    assert groups.exposure.tolist() == [0.5 + 0, 1 + 0.5]
    assert groups.target.tolist() == [0.5 + 0.5, 0.5 + 0.5]
    assert groups.ratio.tolist() == [0.5 / 1, 1.5 / 1]
    assert groups.difference.tolist() == [0.5 - 1, 1.5 - 1]
    assert groups.worst_ratio == pytest.approx(0.5 / 1.5)
    assert groups.worst_difference == 1.5 - 0.5


def test_a_fair_system_has_ratios_of_one():
    target = target_exposure([1, 1, 0, 0], top_k(2))
    groups = group_exposure(target, target, [7, 3, 7, 3])
    assert groups.labels == (3, 7)
    assert groups.ratio.tolist() == [1.0, 1.0]
    assert (groups.worst_ratio, groups.worst_difference) == (1.0, 0.0)


def test_a_group_to_which_nothing_is_due_has_no_ratio():
    groups = group_exposure([0.5, 0.5], [0.0, 1.0], ["x", "y"])
    assert math.isnan(groups.ratio[0])
    assert groups.worst_ratio == 1.0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (([1.0], [1.0, 0.0], ["a", "b"]), r"len\(target\) is 2"),
        (([1.0, 0.0], [1.0, 0.0], ["a"]), r"len\(labels\) is 1"),
        (([1.0, 0.0], [1.0, 0.0], ["a", 1]), "labels is"),
        (([1.0, 0.0], [1.0, 0.0], [True, False]), "labels is"),
        (([1.0, 2.0], [1.0, 0.0], ["a", "b"]), r"exposure\[1\] is 2.0"),
        (([1.0, 0.0], [1.0, -1.0], ["a", "b"]), r"target\[1\] is -1.0"),
    ],
)
def test_bad_groups_are_refused(arguments, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        group_exposure(*arguments)


# --- bounds


def test_bounds_by_hand():
    """Four items, k = 3, one useful: its target is 1, that of the others 2/3.

    EE-D: all alike 9/4, deterministic 3. EE-R: with the useful item 1 + 2 · 2/3, without it 3 · 2/3. EE-L at most
    3 − 2 · 2 + 1 + 3 · 4/9.
    """
    found = exposure_bounds([1, 0, 0, 0], k=3)
    assert found.ee_d == pytest.approx((9 / 4, 3))
    assert found.ee_r == pytest.approx((2, 7 / 3))
    assert found.ee_l == pytest.approx((0, 4 / 3))
    assert found.ee_d_norm == pytest.approx((3 / 4, 1))
    assert found.ee_r_norm == pytest.approx((6 / 7, 1))


def test_where_all_are_shown_no_policy_differs():
    found = exposure_bounds([1, 0, 1], k=5)
    assert found.ee_d_norm == found.ee_r_norm == (1, 1)
    assert found.ee_l == (0, 0)


def test_where_nothing_is_useful_relevance_has_no_bounds():
    found = exposure_bounds([0, 0, 0], k=2)
    assert np.isnan([*found.ee_r, *found.ee_r_norm]).all()


attentions = st.lists(st.integers(0, 8).map(lambda eighths: eighths / 8), min_size=5, max_size=5)


@property_test
@given(st.lists(st.integers(0, 2), min_size=1, max_size=5), st.integers(1, 6), attentions, st.randoms())
def test_bounds_are_those_of_all_rankings(grades, k, attention, random):
    """Attention may rise with the rank. Mixtures of rankings lie within the bounds, and some rankings on them."""
    n = len(grades)
    browsing = position_weights(attention)
    bounds = exposure_bounds(grades, k=k, browsing=browsing)
    rankings = list(itertools.permutations(range(n)))
    found = [exposure_metrics([one], grades, k=k, browsing=browsing) for one in rankings]
    mixed = exposure_metrics(random.choices(rankings, k=7), grades, k=k, browsing=browsing)
    everyone = exposure_metrics(rankings, grades, k=k, browsing=browsing)
    for name in ("ee_d", "ee_r", "ee_l", "ee_d_norm", "ee_r_norm"):
        low, high = getattr(bounds, name)
        values = np.array([getattr(one, name) for one in [*found, mixed, everyone]])
        if np.isnan(low):
            assert np.isnan(values).all()
            continue
        assert values.min() >= low - 1e-9
        assert values.max() == pytest.approx(high, abs=1e-9)
        if name != "ee_l":  # which only the target itself brings to 0
            assert values.min() == pytest.approx(low, abs=1e-9)
        if name.endswith("norm"):
            assert ((values >= 0) & (values <= 1)).all()


def test_relevance_stays_below_one_where_attention_rises_with_the_rank():
    """By hand: attention 1, 0, 0.9, 0.3; two useful of four have target 0.5, the others 0.6.

    Others at ranks 1 and 3 reach 0.6 · 1.9 + 0.5 · 0.3 = 1.29, more than the target's own 1.22.
    """
    middle = position_weights([1, 0, 0.9, 0.3])
    best = exposure_metrics([[2, 0, 3, 1]], [1, 1, 0, 0], k=4, browsing=middle)
    assert best.ee_r == pytest.approx(1.29)
    assert best.ee_r_norm == pytest.approx(1)
    oracle = exposure_metrics([[0, 1, 2, 3], [1, 0, 3, 2]], [1, 1, 0, 0], k=4, browsing=middle)
    assert oracle.ee_r_norm == pytest.approx(1.22 / 1.29)


@pytest.mark.parametrize("browsing", [rbp(0.5), reciprocal_rank])
def test_the_same_ranking_always_is_at_the_bound_whatever_the_attention(browsing):
    found = exposure_metrics(useful_mask=[1, 0, 0], rankings=[[0, 1, 2]] * 3, k=2, browsing=browsing)
    assert found.ee_d_norm == pytest.approx(1.0)
    assert found.ee_d_norm == pytest.approx(found.ee_d / found.ee_d_bound)
    bounds = exposure_bounds([1, 0, 0], k=2, browsing=browsing)
    assert bounds.ee_d_norm == (pytest.approx(bounds.ee_d[0] / bounds.ee_d[1]), 1.0)
