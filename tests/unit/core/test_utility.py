import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenmesh_core.errors import InvalidInput
from evenmesh_core.utility import (
    expected_utility,
    extended_auc,
    fairness_intervals,
    lamp3_utility,
    maximum_utility,
    normalized_expected_utility,
    tradeoff,
    utility_gains,
    utility_labels,
)

property_test = settings(derandomize=True, deadline=None, max_examples=50)
shares = st.floats(0, 1)


# --- expected utility


def test_expected_utility_is_the_mean():
    assert expected_utility([0.2, 0.4, 0.9]) == pytest.approx((0.2 + 0.4 + 0.9) / 3)


def test_expected_utility_weighed_by_probability():
    assert expected_utility([1.0, 0.0, 0.5], [0.5, 0.3, 0.2]) == pytest.approx(1 * 0.5 + 0 * 0.3 + 0.5 * 0.2)


def test_probabilities_of_some_rankings_are_brought_to_one():
    assert expected_utility([1.0, 0.0], [0.3, 0.1]) == pytest.approx(0.3 / (0.3 + 0.1))


@pytest.mark.parametrize(
    ("utilities", "probabilities", "complaint"),
    [
        ([], None, "utilities is"),
        ([math.nan], None, r"utilities\[0\] is nan"),
        ([1.0], [0.0], "probabilities is .*at least one above 0"),
        ([1.0], [0.5, 0.5], r"len\(probabilities\) is 2"),
        ([1.0], [-0.5], r"probabilities\[0\] is -0.5"),
    ],
)
def test_bad_utilities_are_refused(utilities, probabilities, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        expected_utility(utilities, probabilities)


def test_the_maximum_is_over_all_outputs_of_all_runs():
    assert maximum_utility([[0.1, 0.7], [0.2], [0.0, 0.6, 0.3]]) == 0.7


@pytest.mark.parametrize("runs", [[], [[]], [[0.1], [-0.1]], [[math.inf]]])
def test_bad_runs_are_refused(runs):
    with pytest.raises(InvalidInput, match="runs"):
        maximum_utility(runs)


def test_normalized_utility_is_the_share_of_the_attainable():
    np.testing.assert_allclose(normalized_expected_utility([0.2, 0.5], [0.4, 0.5]), [0.2 / 0.4, 1.0])
    assert float(normalized_expected_utility(0.3, 0.6)) == pytest.approx(0.3 / 0.6)


def test_where_nothing_was_attainable_the_share_is_undefined():
    """The authors' code says 1.0 here."""
    found = normalized_expected_utility([0.0, 0.1], [0.0, 0.2])
    assert math.isnan(found[0])
    assert found[1] == pytest.approx(0.1 / 0.2)
    assert math.isnan(normalized_expected_utility(0.0, 0.0))


@pytest.mark.parametrize(
    ("eu", "u_max", "complaint"),
    [
        (0.5, 0.4, "eu is 0.5; allowed: at most u_max"),
        (-0.1, 0.4, "eu is -0.1"),
        (0.1, -0.4, "u_max is -0.4"),
        (math.nan, 1.0, "eu is nan"),
        ([0.1, 0.2], [1.0], r"u_max.shape is \(1,\)"),
        ([[0.1]], 1.0, "eu.shape"),
    ],
)
def test_bad_normalization_is_refused(eu, u_max, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        normalized_expected_utility(eu, u_max)


# --- conversion and labels


@pytest.mark.parametrize(
    ("truth", "guess", "utility"), [(5, 5, 4), (5, 1, 0), (2, 3.5, 4 - 1.5), (1, 9, 0), (3, -2, 0)]
)
def test_lamp3_errors_become_utilities(truth, guess, utility):
    assert float(lamp3_utility(truth, guess)) == utility


def test_lamp3_of_vectors():
    assert lamp3_utility([1, 5], [2, 5]).tolist() == [4 - 1, 4 - 0]


@pytest.mark.parametrize(
    ("truth", "guess", "complaint"),
    [
        (0, 3, "reference is 0"),
        (6, 3, "reference is 6"),
        (3, math.inf, "prediction is inf"),
        ([1], 1, "prediction.shape"),
    ],
)
def test_bad_ratings_are_refused(truth, guess, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        lamp3_utility(truth, guess)


def test_an_item_is_useful_if_it_gains_anything():
    np.testing.assert_allclose(utility_gains([0.5, 0.3, 0.2], 0.3), [0.2, 0.0, -0.1])
    assert utility_labels([0.5, 0.3, 0.2], 0.3).tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("augmented", "baseline", "complaint"),
    [([], 0.0, "augmented"), ([math.nan], 0.0, r"augmented\[0\]"), ([1.0], math.nan, "baseline is nan")],
)
def test_bad_labels_input_is_refused(augmented, baseline, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        utility_labels(augmented, baseline)


# --- curves


def test_a_line_by_hand():
    line = tradeoff([0.0, 0.5, 1.0], [0.2, 0.4, 0.6])
    assert line.slope == pytest.approx((0.6 - 0.2) / (1 - 0))
    assert line.intercept == pytest.approx(0.2)
    assert line.auc == pytest.approx((0.2 + 0.6) / 2)
    assert (line.points, line.undefined) == (3, 0)


def test_the_area_is_that_of_the_covered_range_and_the_extended_one_is_held_constant_outside():
    # (0.8, 0.4), and 0.2 at x = 0.4 twice: 0.1 and 0.3
    curve = tradeoff([0.8, 0.4, 0.4], [0.4, 0.1, 0.3])
    inside = (0.8 - 0.4) * (0.2 + 0.4) / 2
    assert curve.auc == pytest.approx(inside / (0.8 - 0.4))
    assert (curve.auc_from, curve.auc_to) == (0.4, 0.8)
    extended = extended_auc([0.8, 0.4, 0.4], [0.4, 0.1, 0.3])
    assert extended == pytest.approx(0.4 * 0.2 + inside + (1 - 0.8) * 0.4)
    # least squares over three points: mean x 1.6/3, mean y 0.8/3
    x, y = np.array([0.8, 0.4, 0.4]), np.array([0.4, 0.1, 0.3])
    assert curve.slope == pytest.approx(((x - 1.6 / 3) * (y - 0.8 / 3)).sum() / ((x - 1.6 / 3) ** 2).sum())


@pytest.mark.parametrize(
    "x", [[0.3, 0.3], [0.3, 0.3 + 9e-10], [1.0, 1 - 1e-10], [0.5, math.nextafter(0.5, 1)]]
)
def test_one_x_has_neither_slope_nor_area(x):
    """x that differ by rounding gave slopes like −1.66e14."""
    curve = tradeoff(x, [0.2, 0.4])
    for value in (curve.slope, curve.intercept, curve.auc):
        assert math.isnan(value)
    assert curve.auc_from == pytest.approx(x[0])
    assert extended_auc([0.3, 0.3], [0.2, 0.4]) == pytest.approx((0.2 + 0.4) / 2)


def test_x_further_apart_than_rounding_has_a_slope():
    assert tradeoff([0.5, 0.5 + 2e-9], [0.0, 1e-9]).slope == pytest.approx(0.5, rel=1e-6)


def test_the_curve_joins_the_averages_of_each_dial():
    """By hand: dial 1 averages (0.1, 0.4) and (0.3, 0.2) to (0.2, 0.3), dial 2 (0.5, 0.6) and (0.7, 0.8) to (0.6, 0.7).

    Between them the curve is straight, so its mean height is (0.3 + 0.7) / 2; the points themselves would be
    joined from 0.1 to 0.7.
    """
    curve = tradeoff([0.1, 0.5, 0.3, 0.7], [0.4, 0.6, 0.2, 0.8], dials=[1, 2, 1, 2])
    assert (curve.auc_from, curve.auc_to) == (pytest.approx(0.2), pytest.approx(0.6))
    assert curve.auc == pytest.approx(0.5)
    own = tradeoff([0.1, 0.5, 0.3, 0.7], [0.4, 0.6, 0.2, 0.8])
    assert own.auc == pytest.approx((0.2 * 0.3 + 0.2 * 0.4 + 0.2 * 0.7) / 0.6)


def test_dials_of_undefined_points_are_left_out():
    curve = tradeoff([0.1, math.nan, 0.5], [0.4, 0.1, 0.8], dials=["a", "a", "b"])
    assert curve.auc == pytest.approx((0.4 + 0.8) / 2)
    with pytest.raises(InvalidInput, match=r"len\(dials\) is 2"):
        tradeoff([0.1, 0.2, 0.5], [0.4, 0.1, 0.8], dials=["a", "b"])


def test_many_x_without_dials_make_ten_groups_of_neighbours():
    """Twenty x, 0 to 0.95 in steps of 0.05: pairs of neighbours average to 0.025, 0.125, to 0.925."""
    x = np.arange(20) / 20
    curve = tradeoff(x, x * 2)
    assert (curve.auc_from, curve.auc_to) == (pytest.approx(0.025), pytest.approx(0.925))
    assert curve.auc == pytest.approx(0.025 + 0.925)  # of y = 2 x, the middle


@property_test
@given(st.lists(st.tuples(shares, shares), min_size=100, max_size=120), st.floats(0, 1), st.floats(0, 1))
def test_one_point_cannot_decide_the_area(points, x, y):
    """A point weighs at most its share of one of ten groups, at most 1/10 of the range if groups are even.

    The extended area of two points at 0.4 and one at 0 takes 0.4 of its height from that one.
    """
    even = (np.arange(len(points)) + 0.5) / len(points)
    heights = [height for _, height in points]
    before, after = tradeoff(even, heights).auc, tradeoff([*even, x], [*heights, y]).auc
    assert abs(after - before) < 0.06
    assert abs(extended_auc([0.4, 0.4, 0.0], [0, 0, 1]) - extended_auc([0.4, 0.4], [0, 0])) == pytest.approx(
        0.2
    )


def test_undefined_points_are_counted():
    curve = tradeoff([0.0, 1.0, math.nan, 0.5], [1.0, 0.0, 0.5, math.nan])
    assert (curve.points, curve.undefined) == (2, 2)
    assert curve.slope == pytest.approx(-1.0)
    assert math.isnan(tradeoff([math.nan], [1.0]).auc)


@property_test
@given(st.lists(st.tuples(shares, shares), min_size=1, max_size=20))
def test_the_area_lies_between_the_least_and_the_largest_y(points):
    x, y = zip(*points, strict=True)
    curve = tradeoff(x, y)
    assert math.isnan(curve.auc) == (max(x) - min(x) <= 1e-9)
    assert math.isnan(curve.auc) or min(y) - 1e-12 <= curve.auc <= max(y) + 1e-12
    assert curve.auc == pytest.approx(tradeoff(x[::-1], y[::-1]).auc, abs=1e-12, nan_ok=True)


@property_test
@given(st.lists(shares, min_size=2, max_size=20, unique=True), st.floats(-5, 5), st.floats(-5, 5))
def test_points_on_a_line_give_that_line(x, slope, intercept):
    if max(x) - min(x) < 1e-3:
        x = [*x, 1.0, 0.0]
    line = tradeoff(x, [slope * a + intercept for a in x])
    assert line.slope == pytest.approx(slope, abs=1e-6)
    assert line.intercept == pytest.approx(intercept, abs=1e-6)


@pytest.mark.parametrize(
    ("x", "y", "complaint"),
    [
        ([], [], "x is"),
        ([0.5], [0.5, 0.5], r"len\(y\) is 2"),
        ([1.1], [0.5], r"x\[0\] is 1.1; allowed: finite numbers from 0 to 1, or nan"),
        ([-0.1], [0.5], r"x\[0\] is -0.1"),
        ([0.5], [math.inf], r"y\[0\] is inf"),
    ],
)
def test_bad_points_are_refused(x, y, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        tradeoff(x, y)


# --- fairness intervals


def test_values_are_means_less_the_baseline():
    intervals = fairness_intervals([0.1, 0.15, 0.5, 1.0], [0.4, 0.6, 0.9, 0.7], 0.7)
    np.testing.assert_allclose(intervals.values, [(0.4 + 0.6) / 2 - 0.7, np.nan, 0.9 - 0.7, np.nan, np.nan])
    assert intervals.counts.tolist() == [2, 0, 1, 0, 0]
    assert intervals.deterministic == 1
    assert intervals.edges.tolist() == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]


def test_the_paired_form_holds_each_point_against_its_own_query():
    """By hand: an easy query, 0.9 without sampling, loses 0.1 at 0.5; a hard one, 0.1, has no point there.

    The paper's form subtracts their mean, 0.5, and calls the loss a gain of 0.3.
    """
    paper = fairness_intervals([0.5], [0.8], (0.9 + 0.1) / 2)
    paired = fairness_intervals([0.5], [0.8], [0.9])
    assert paper.values[2] == pytest.approx(0.3)
    assert paired.values[2] == pytest.approx(-0.1)
    undefined = fairness_intervals([0.5, 0.5], [0.8, 0.6], [0.9, math.nan])
    assert (undefined.counts[2], undefined.undefined) == (1, 1)
    assert undefined.values[2] == pytest.approx(-0.1)
    with pytest.raises(InvalidInput, match=r"len\(baseline\) is 1"):
        fairness_intervals([0.5, 0.6], [0.8, 0.6], [0.9])


@pytest.mark.parametrize(
    ("disparity", "interval"),
    [
        (0.0, 0),
        (0.2, 1),
        (0.4, 2),
        (0.6, 3),  # 0.6 // 0.2 is 2.0
        (0.8, 4),
        (3 / 5, 3),
        (math.nextafter(0.2, 0), 0),
        (math.nextafter(0.6, 0), 2),
        (math.nextafter(1.0, 0), 4),
    ],
)
def test_edges_belong_to_the_upper_interval(disparity, interval):
    counts = fairness_intervals([disparity], [0.5], 0.0).counts
    assert counts.tolist() == [int(i == interval) for i in range(5)]


def test_floor_division_would_have_been_wrong():
    assert 0.6 // 0.2 == 2.0


@property_test
@given(st.lists(st.tuples(shares, shares), min_size=1, max_size=30))
def test_every_point_is_counted_once(points):
    x, y = zip(*points, strict=True)
    intervals = fairness_intervals([*x, math.nan], [*y, 0.5], 0.25)
    assert intervals.counts.sum() + intervals.deterministic == len(points)
    assert intervals.undefined == 1
    assert np.isnan(intervals.values).tolist() == (intervals.counts == 0).tolist()


@pytest.mark.parametrize(
    ("x", "y", "baseline", "complaint"),
    [
        ([], [], 0.0, "ee_d_norm"),
        ([1.2], [0.5], 0.0, r"ee_d_norm\[0\] is 1.2"),
        ([0.2], [0.5, 0.1], 0.0, r"len\(eu_norm\)"),
        ([0.2], [0.5], math.nan, "baseline is nan"),
    ],
)
def test_bad_intervals_are_refused(x, y, baseline, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        fairness_intervals(x, y, baseline)


def test_a_level_curve_has_slope_zero_to_the_last_digit() -> None:
    level = tradeoff([0.1, 0.225, 0.4], [0.4, 0.4, 0.4])
    assert (level.slope, level.intercept, level.auc) == (0.0, pytest.approx(0.4), pytest.approx(0.4))
