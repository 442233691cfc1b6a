import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenmesh_core.errors import InvalidInput
from evenmesh_core.fusion import (
    fused_log_odds,
    log_odds_fusion,
    platt_scaling,
    reciprocal_rank_fusion,
    weighted_score_fusion,
)

property_test = settings(derandomize=True, deadline=None, max_examples=50)
rankings_lists = st.lists(
    st.permutations("abcdef").flatmap(lambda p: st.integers(0, 6).map(lambda n: p[:n])),
    min_size=1,
    max_size=5,
)


def test_reciprocal_ranks_by_hand():
    fused = reciprocal_rank_fusion([["a", "b"], ["b", "c"]])
    assert fused == [("b", 1 / 62 + 1 / 61), ("a", 1 / 61), ("c", 1 / 62)]
    assert fused[0].item == "b"


def test_k_and_weights():
    fused = reciprocal_rank_fusion([["a", "b"], ["b"]], k=1, weights=[2.0, 1.0])
    assert fused == [("b", 2 / 3 + 1 / 2), ("a", 2 / 2)]


def test_equal_scores_rank_by_ascending_id():
    assert [item for item, _ in reciprocal_rank_fusion([["b", "a"], ["a", "b"]])] == ["a", "b"]
    assert [item for item, _ in reciprocal_rank_fusion([[10, 9], [9, 10]])] == [9, 10]


def test_a_tie_is_a_tie_whatever_the_order_of_summation():
    # "a" has ranks 1, 7 and 2, "b" has 2, 1 and 7; added from left to right, "a" would get the smaller sum.
    assert (1 / 61 + 1 / 67) + 1 / 62 < (1 / 62 + 1 / 61) + 1 / 67
    rankings = [["a", "b"], ["b", *"cdefg", "a"], ["h", "a", *"ijkl", "b"]]
    scores = dict(reciprocal_rank_fusion(rankings))
    assert scores["a"] == scores["b"]


@property_test
@given(rankings_lists)
def test_fusion_does_not_depend_on_the_order_of_the_rankings(rankings):
    fused = reciprocal_rank_fusion(rankings)
    assert fused == reciprocal_rank_fusion(rankings[::-1])
    assert {item for item, _ in fused} == {item for ranking in rankings for item in ranking}
    assert fused == sorted(fused, key=lambda entry: (-entry.score, entry.item))


@property_test
@given(st.permutations("abcdef"))
def test_fusing_a_ranking_with_itself_keeps_it(ranking):
    assert [item for item, _ in reciprocal_rank_fusion([ranking, ranking])] == list(ranking)


def test_empty_rankings_add_nothing():
    assert reciprocal_rank_fusion([[], ["a"]]) == [("a", 1 / 61)]
    assert reciprocal_rank_fusion([[], []]) == []


def test_weighted_scores_by_hand():
    fused = weighted_score_fusion([{"a": 3.0, "b": 1.0, "c": 2.0}, {"c": 10.0, "d": 0.0}], [1.0, 2.0])
    assert fused == [("c", (2 - 1) / (3 - 1) + 2 * 1), ("a", 1.0), ("b", 0.0), ("d", 0.0)]


def test_scores_as_they_are():
    assert weighted_score_fusion([{"a": 3.0}, {"a": 1.0, "b": 5.0}], normalization="none") == [
        ("b", 5.0),
        ("a", 4.0),
    ]


def test_standardized_scores_by_hand():
    """Of [1, 2, 3, 1]: mean 7/4, variance 11/16; of [0, 0, 10, 4]: mean 7/2, variance 67/4."""
    fused = weighted_score_fusion(
        [{"b": 1.0, "c": 2.0, "a": 3.0}, {"a": 10.0, "d": 4.0}],
        [1.0, 2.0],
        normalization="z-score",
        missing=[1.0, 0.0],
    )
    one, other = 4 / math.sqrt(11), 4 / math.sqrt(268)
    expected = {
        "a": (3 - 1.75) * one + 2 * 6.5 * other,
        "b": (1 - 1.75) * one - 2 * 3.5 * other,
        "c": (2 - 1.75) * one - 2 * 3.5 * other,
        "d": (1 - 1.75) * one + 2 * 0.5 * other,
    }
    assert [entry.item for entry in fused] == ["a", "d", "c", "b"]
    assert dict(fused) == pytest.approx(expected)


def test_standardized_scores_lack_the_lowest_and_equal_ones_say_nothing():
    assert weighted_score_fusion([{"a": 5.0, "b": 1.0}, {"c": 2.0}], normalization="z-score") == [
        ("a", pytest.approx(math.sqrt(2))),
        ("b", pytest.approx(-math.sqrt(0.5))),
        ("c", pytest.approx(-math.sqrt(0.5))),
    ]
    assert weighted_score_fusion([{"a": 5.0, "b": 5.0}, {}], normalization="z-score") == [
        ("a", 0.0),
        ("b", 0.0),
    ]


def test_scores_that_do_not_differ_count_full():
    assert weighted_score_fusion([{"b": 7.0, "a": 7.0}, {}]) == [("a", 1.0), ("b", 1.0)]


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: reciprocal_rank_fusion([]), "rankings is"),
        (lambda: reciprocal_rank_fusion([["a", "a"]]), r"rankings\[0\] is .*each item once"),
        (lambda: reciprocal_rank_fusion([["a"]], k=-1), "k is -1"),
        (lambda: reciprocal_rank_fusion([["a"]], k=math.nan), "k is nan"),
        (lambda: reciprocal_rank_fusion([["a"]], weights=[1.0, 2.0]), r"len\(weights\) is 2"),
        (lambda: reciprocal_rank_fusion([["a"]], weights=[-1.0]), r"weights\[0\] is -1"),
        (lambda: reciprocal_rank_fusion([["a", 1]]), "all texts or all whole numbers"),
        (lambda: weighted_score_fusion([]), "scores is"),
        (lambda: weighted_score_fusion([{"a": math.nan}]), r"scores\[0\]\[0\] is nan"),
        (lambda: weighted_score_fusion([{"a": 1.0}], normalization="z"), "normalization is 'z'"),
        (lambda: weighted_score_fusion([{"a": 1.0}], missing=[0.0]), "missing is"),
        (
            lambda: weighted_score_fusion([{"a": 1.0}], normalization="z-score", missing=[0.0, 1.0]),
            r"len\(missing\) is 2",
        ),
    ],
)
def test_bad_input_is_refused(call, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        call()


def test_log_odds_and_scores_by_hand():
    """Odds of 0.8 are 4: 1/2 · (log 4 + 2 · 1) + 1 = log 2 + 2, and its odds are 2·e²."""
    fused = log_odds_fusion(np.array([0.8, 0.5]), np.array([1.0, 0.0]), 2.0, slope=0.5, intercept=1.0)
    odds = 2 * math.e**2
    assert fused.tolist() == pytest.approx([odds / (1 + odds), math.e / (1 + math.e)])


@property_test
@given(st.lists(st.floats(1e-5, 1 - 1e-5), min_size=1, max_size=20))
def test_probabilities_alone_stay(values: list[float]):
    fused = log_odds_fusion(np.array(values), np.arange(len(values), dtype=float), 0.0)
    assert fused == pytest.approx(values)


@property_test
@given(st.lists(st.floats(0, 1), min_size=2, max_size=20), st.floats(0, 100), st.floats(1e-3, 100))
def test_fused_values_are_probabilities_that_grow_with_the_score(
    values: list[float], weight: float, slope: float
):
    scores = np.linspace(-100.0, 100.0, len(values))
    fused = log_odds_fusion(np.array(values), scores, weight, slope=slope, intercept=-3.0)
    assert ((fused >= 0) & (fused <= 1)).all()
    alike = log_odds_fusion(np.full(len(values), values[0]), scores, weight, slope=slope)
    assert (np.diff(alike) >= 0).all()


@pytest.mark.parametrize(
    ("values", "scores", "weight", "field"),
    [
        ([0.5, 1.5], [0.0, 0.0], 1.0, "probabilities"),
        ([0.5], [0.0, 0.0], 1.0, "first"),
        ([0.5], [math.inf], 1.0, "first"),
        ([0.5], [0.0], -1.0, "weight"),
        ([0.5], [0.0], math.nan, "weight"),
    ],
)
def test_what_cannot_be_fused_is_refused(values: list[float], scores: list[float], weight: float, field: str):
    with pytest.raises(InvalidInput, match=field):
        log_odds_fusion(np.array(values), np.array(scores), weight)


def test_a_slope_that_turns_the_order_is_refused():
    with pytest.raises(InvalidInput, match="slope"):
        log_odds_fusion(np.array([0.5]), np.array([0.0]), 1.0, slope=-1.0)


def test_log_odds_come_before_calibration():
    """Odds of 0.8 are 4."""
    assert fused_log_odds(np.array([0.8, 0.5]), np.array([1.0, 0.0]), 2.0).tolist() == pytest.approx(
        [math.log(4) + 2.0, 0.0]
    )


def test_values_that_a_calibration_made_lead_back_to_it():
    """With ten thousand of them, one more of each kind does not count."""
    odds = np.tile(np.linspace(-6.0, 6.0, 100), 100)
    values = 1 / (1 + np.exp(-(0.7 * odds - 2.0)))
    assert platt_scaling(odds, values) == pytest.approx((0.7, -2.0), abs=0.01)
    assert platt_scaling(odds, values, smoothed=False) == pytest.approx((0.7, -2.0), abs=1e-3)


def test_calibration_of_one_number_by_hand():
    """Of four values of 0 at x = 0 the share is (0 + 1) / (4 + 2) by Platt's targets: intercept log 1/5."""
    _, intercept = platt_scaling(np.zeros(4), np.zeros(4))
    assert intercept == pytest.approx(math.log(1 / 5), abs=1e-4)


@property_test
@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(0, 1)), min_size=1, max_size=30))
def test_a_calibration_is_bounded_and_never_turns_the_order(pairs: list[tuple[float, float]]):
    odds, values = np.array(pairs).T
    slope, intercept = platt_scaling(odds, values)
    assert 0.01 <= slope <= 2.0
    assert -10.0 <= intercept <= 10.0


@pytest.mark.parametrize(
    ("odds", "values", "field"),
    [
        ([], [], "log_odds"),
        ([1.0], [0.0, 1.0], "log_odds"),
        ([math.inf], [1.0], "log_odds"),
        ([1.0], [1.5], "values"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(odds: list[float], values: list[float], field: str):
    with pytest.raises(InvalidInput, match=field):
        platt_scaling(np.array(odds), np.array(values))
