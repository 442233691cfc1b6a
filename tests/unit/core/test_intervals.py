import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from evenmesh_core.errors import InvalidInput
from evenmesh_core.intervals import (
    CurvePoints,
    bootstrap_over_queries,
    common_areas,
    mean_interval,
    student_interval,
    tradeoff_intervals,
)
from evenmesh_core.utility import tradeoff

property_test = settings(derandomize=True, deadline=None, max_examples=40)
methods = st.sampled_from(["bca", "percentile"])
values = st.lists(st.integers(0, 8).map(lambda eighths: eighths / 8), min_size=2, max_size=30)


def limits(interval):
    return (interval.low, interval.high)


# --- against SciPy, from the same draws


@pytest.mark.parametrize("method", ["bca", "percentile"])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_mean_has_the_limits_of_scipy(method, level):
    sample = np.random.default_rng(5).gamma(1.0, size=40)
    found = mean_interval(sample, level=level, method=method, num_resamples=999, rng=np.random.default_rng(3))
    expected = stats.bootstrap(
        (sample,),
        np.mean,
        confidence_level=level,
        method=method,
        n_resamples=999,
        random_state=np.random.default_rng(3),
    ).confidence_interval
    np.testing.assert_allclose(limits(found), expected, rtol=1e-12)
    assert found.value == pytest.approx(sample.mean())


@pytest.mark.parametrize("method", ["bca", "percentile"])
def test_any_statistic_has_the_limits_of_scipy(method):
    sample = np.random.default_rng(6).normal(size=25)

    def spread(indices):
        return float(sample[indices].std())

    found = bootstrap_over_queries(range(25), spread, method=method, num_resamples=500, rng=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = stats.bootstrap(
            (sample,),
            np.std,
            method=method,
            n_resamples=500,
            batch=1,  # one resample after another, as here
            random_state=np.random.default_rng(4),
        ).confidence_interval
    np.testing.assert_allclose(limits(found), expected, rtol=1e-12)


def test_bca_and_percentile_differ_where_the_data_is_skewed():
    sample = np.random.default_rng(1).gamma(0.5, size=30)
    bca = mean_interval(sample, rng=0)
    percentile = mean_interval(sample, method="percentile", rng=0)
    assert bca.low > percentile.low  # skewed to the right: both limits move up
    assert bca.high > percentile.high


@pytest.mark.parametrize("method", ["bca", "percentile"])
def test_intervals_hold_the_true_mean_about_as_often_as_they_say(method):
    rng = np.random.default_rng(8)
    trials = 300
    held = 0
    for _ in range(trials):
        found = mean_interval(rng.normal(2.0, size=40), level=0.9, method=method, num_resamples=300, rng=rng)
        held += found.low <= 2.0 <= found.high
    # binomial: 0.9 · 300 = 270 expected, standard deviation √(300 · 0.9 · 0.1) = 5.2; 40 queries cost a little
    assert 300 * 0.9 - 4 * 5.2 - 5 < held < 300 * 0.9 + 4 * 5.2


# --- by hand


def test_two_queries_by_hand():
    # Resamples of {0, 1} have mean 0, 1/2, 1 with chances 1/4, 1/2, 1/4, so a 40 % interval, from the 30th to
    # the 70th percentile, is the point 1/2, and a 60 % interval, from the 20th to the 80th, is [0, 1].
    assert limits(mean_interval([0, 1], level=0.4, method="percentile", rng=0)) == (1 / 2, 1 / 2)
    assert limits(mean_interval([0, 1], level=0.6, method="percentile", rng=0)) == (0, 1)


def test_the_undefined_are_left_out_and_counted():
    found = mean_interval([0.2, math.nan, 0.6, math.nan, 0.4], rng=0)
    assert found.value == pytest.approx((0.2 + 0.6 + 0.4) / 3)
    assert (found.defined, found.undefined, found.level, found.method) == (3, 2, 0.95, "bca")
    assert limits(found) == limits(mean_interval([0.2, 0.6, 0.4], rng=0))


@pytest.mark.parametrize("method", ["bca", "percentile"])
def test_equal_values_are_a_point(method):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = mean_interval([0.1] * 7, method=method, rng=0)
    assert found.low == found.value == found.high
    assert found.value == pytest.approx(0.1)


@pytest.mark.parametrize("method", ["bca", "percentile"])
@pytest.mark.parametrize(("sample", "value"), [([0.3], 0.3), ([0.3, math.nan], 0.3), ([math.nan], math.nan)])
def test_fewer_than_two_values_have_no_limits(sample, value, method):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = mean_interval(sample, method=method, rng=0)
    np.testing.assert_array_equal([found.value, found.low, found.high], [value, math.nan, math.nan])
    assert found.defined == sum(not math.isnan(v) for v in sample)


def test_many_values_need_no_memory_for_all_draws_at_once():
    sample = np.random.default_rng(0).random(50_000)
    found = mean_interval(sample, num_resamples=200, rng=0)
    # mean of uniforms: standard error √(1/12 / 50000) = 0.00129
    assert found.high - found.low == pytest.approx(2 * 1.96 * math.sqrt(1 / 12 / 50_000), rel=0.2)


def test_students_interval_by_hand():
    """Values 1, 2, 3, 4 and 5: mean 3, s² = 10 / 4, and t of 4 degrees of freedom at 0.975 is 2.776."""
    found = student_interval([1, 2, 3, 4, 5, math.nan])
    assert (found.value, found.defined, found.undefined, found.method) == (3, 5, 1, "t")
    assert limits(found) == pytest.approx(
        (3 - 2.7764 * math.sqrt(2.5 / 5), 3 + 2.7764 * math.sqrt(2.5 / 5)), abs=1e-4
    )
    assert math.isnan(student_interval([0.5]).low)


def test_students_interval_of_the_largest_level_has_limits():
    found = student_interval([1, 2, 3, 4, 5], level=math.nextafter(1.0, 0.0))
    assert (found.high - 3) / math.sqrt(2.5 / 5) == pytest.approx(stats.t.isf(2**-54, 4), rel=1e-6)


# --- over queries


def test_whole_queries_are_drawn():
    # Three points of "a" and one of "b": a resample has 6, 4 or 2 points, never three of one and none else.
    seen = set()

    def count_points(indices):
        seen.add(tuple(sorted(indices.tolist())))
        return float(len(indices))

    found = bootstrap_over_queries(["a", "b", "a", "a"], count_points, method="percentile", rng=0)
    assert seen == {(0, 1, 2, 3), (0, 0, 2, 2, 3, 3), (1, 1)}
    assert (found.value, found.defined, found.undefined) == (4.0, 2, 0)


def test_points_of_one_query_tell_no_more_than_the_query():
    """As if points were independent, the interval would be √10 times too narrow."""
    sample = np.random.default_rng(2).normal(size=30)
    once = bootstrap_over_queries(range(30), lambda i: float(sample[i].mean()), rng=1)
    repeated = np.repeat(sample, 10)
    often = bootstrap_over_queries(
        np.repeat(range(30), 10).tolist(), lambda i: float(repeated[i].mean()), rng=1
    )
    np.testing.assert_allclose(limits(often), limits(once), rtol=1e-9)


def test_resamples_without_a_value_are_left_out_and_counted():
    # Three queries with one x each: a resample of one query three times, 3 / 27 of them, has no slope.
    found = tradeoff_intervals("abc", [0.1, 0.5, 0.9], [0.2, 0.5, 0.6], method="percentile", rng=0)
    lost = found.slope.undefined_resamples
    assert lost == pytest.approx(2000 * 3 / 27, abs=4 * math.sqrt(2000 * 3 / 27 * 24 / 27))
    assert found.auc.undefined_resamples == lost
    assert found.slope.low <= found.slope.value <= found.slope.high


def test_bca_is_undefined_where_a_query_cannot_be_spared():
    # Without "c" only one x is left, so the slope has no value to compare with.
    found = tradeoff_intervals("abc", [0.1, 0.1, 0.9], [0.2, 0.3, 0.6], rng=0)
    assert found.slope.value == pytest.approx((0.6 - (0.2 + 0.3) / 2) / (0.9 - 0.1))
    assert math.isnan(found.slope.low)
    assert math.isnan(found.slope.high)
    assert math.isnan(found.auc.low)
    percentile = tradeoff_intervals("abc", [0.1, 0.1, 0.9], [0.2, 0.3, 0.6], method="percentile", rng=0)
    # with "a" or "b" alone beside "c"
    assert limits(percentile.slope) == pytest.approx(((0.6 - 0.3) / 0.8, (0.6 - 0.2) / 0.8))


def test_bca_is_undefined_where_every_resample_lies_below():
    def distinct(indices):
        return float(len(set(indices.tolist())))

    # 30 of 30 distinct draws come once in 30^30 / 30! = 8e11 resamples.
    found = bootstrap_over_queries(range(30), distinct, rng=0)
    assert found.value == 30.0
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert found.undefined_resamples == 0
    assert bootstrap_over_queries(range(30), distinct, method="percentile", rng=0).high < 30.0


def test_bca_is_undefined_where_leaving_out_a_query_changes_nothing():
    sample = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0])
    found = bootstrap_over_queries(range(7), lambda i: float(np.median(sample[i])), rng=0)
    assert found.value == 0.0
    assert math.isnan(found.low)


def test_an_undefined_statistic_has_no_interval():
    found = bootstrap_over_queries("ab", lambda _: math.nan, rng=0)
    assert math.isnan(found.value)
    assert math.isnan(found.low)
    assert found.undefined_resamples == 2000


# --- tradeoffs


def test_tradeoff_intervals_are_those_of_the_tradeoff_itself():
    rng = np.random.default_rng(12)
    queries = np.repeat(range(12), 4).tolist()
    x = rng.choice([0.0, 0.25, 0.5, 0.75, 1.0], 48)
    y = rng.random(48)
    y[[3, 9]] = math.nan
    found = tradeoff_intervals(queries, x, y, num_resamples=300, rng=5)
    for name in ("slope", "auc"):
        expected = bootstrap_over_queries(
            queries, lambda i, name=name: getattr(tradeoff(x[i], y[i]), name), num_resamples=300, rng=5
        )
        assert getattr(found, name).value == pytest.approx(expected.value)
        np.testing.assert_allclose(limits(getattr(found, name)), limits(expected), rtol=1e-9)
    assert found.fit == tradeoff(x, y)
    assert found.fit.undefined == 2


def test_intervals_of_a_curve_of_dials_are_those_of_its_averages():
    """Every query has every dial, so on any resample the groups are the dials."""
    rng = np.random.default_rng(3)
    queries = np.repeat(range(15), 3).tolist()
    dials = np.tile([1, 2, 4], 15)
    x = np.clip(dials / 5 + rng.normal(0, 0.1, 45), 0, 1)
    y = rng.random(45)
    found = tradeoff_intervals(queries, x, y, dials=dials.tolist(), num_resamples=200, rng=5)
    expected = bootstrap_over_queries(
        queries, lambda i: tradeoff(x[i], y[i], dials=dials[i].tolist()).auc, num_resamples=200, rng=5
    )
    np.testing.assert_allclose(limits(found.auc), limits(expected), rtol=1e-9)
    assert found.fit == tradeoff(x, y, dials=dials.tolist())


def test_systems_are_compared_where_both_have_a_curve():
    """By hand: y = x from 0 to 0.6, and y = 0.5 from 0.2 to 1. From 0.2 to 0.6 their means are 0.4 and 0.5."""
    queries = ["a", "a", "b", "b"]
    one = CurvePoints(queries, [0.0, 0.6, 0.0, 0.6], [0.0, 0.6, 0.0, 0.6])
    other = CurvePoints(queries, [0.2, 1.0, 0.2, 1.0], [0.5] * 4)
    found = common_areas([one, other], rng=0)
    assert (found.low, found.high) == (0.2, 0.6)
    assert [area.value for area in found.areas] == [pytest.approx(0.4), pytest.approx(0.5)]
    assert found.differences[0].value == pytest.approx(-0.1)
    assert limits(found.differences[0]) == (pytest.approx(-0.1), pytest.approx(-0.1))


def test_differences_of_areas_are_of_the_same_resamples():
    """Two systems that differ by 0.1 on every query differ by 0.1 on every resample, however queries scatter."""
    rng = np.random.default_rng(4)
    queries = np.repeat(range(20), 2).tolist()
    x, y = np.tile([0.2, 0.8], 20), np.repeat(rng.random(20), 2)
    found = common_areas([CurvePoints(queries, x, y + 0.1), CurvePoints(queries, x, y)], rng=0)
    assert limits(found.differences[0]) == (pytest.approx(0.1), pytest.approx(0.1))
    assert found.areas[0].high - found.areas[0].low > 0.1


def test_systems_without_a_common_range_have_no_areas():
    apart = [CurvePoints("ab", [0.0, 0.2], [1, 1]), CurvePoints("ab", [0.5, 0.9], [1, 1])]
    found = common_areas(apart, rng=0)
    assert math.isnan(found.low)
    assert [math.isnan(area.value) for area in found.areas] == [True, True]
    nothing = common_areas([CurvePoints("a", [math.nan], [1.0]), apart[0]], rng=0)
    assert math.isnan(nothing.differences[0].value)
    with pytest.raises(InvalidInput, match="systems is"):
        common_areas([], rng=0)


def test_a_level_curve_is_a_point():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = tradeoff_intervals("abcd", [0.1, 0.4, 0.7, 0.9], [0.1] * 4, rng=0)
    assert limits(found.slope) == (0.0, 0.0)
    assert limits(found.auc) == (found.fit.auc, found.fit.auc)


def test_queries_without_points_are_counted():
    found = tradeoff_intervals("aab", [0.1, 0.9, math.nan], [0.2, 0.6, 0.5], rng=0)
    assert (found.slope.defined, found.slope.undefined) == (1, 1)
    assert math.isnan(found.slope.low)
    nothing = tradeoff_intervals("ab", [0.1, math.nan], [math.nan, 0.2], rng=0)
    assert (nothing.auc.defined, nothing.auc.undefined) == (0, 2)
    assert math.isnan(nothing.auc.value)


# --- properties


@property_test
@given(values, methods, st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_interval(sample, method, seed):
    options = {"method": method, "num_resamples": 100}
    first = mean_interval(sample, rng=np.random.default_rng(seed), **options)
    again = mean_interval(sample, rng=seed, **options)
    np.testing.assert_array_equal(limits(first), limits(again))
    assert first.value == again.value


@property_test
@given(values, methods)
def test_limits_are_in_order_and_within_the_data(sample, method):
    found = mean_interval(sample, method=method, num_resamples=200, rng=0)
    if not math.isnan(found.low):
        assert min(sample) - 1e-12 <= found.low <= found.high <= max(sample) + 1e-12


@property_test
@given(values)
def test_a_percentile_interval_holds_the_mean(sample):
    found = mean_interval(sample, level=0.99, method="percentile", num_resamples=1000, rng=0)
    assert found.low - 1e-12 <= found.value <= found.high + 1e-12


@property_test
@given(values, st.randoms())
def test_the_order_of_the_queries_does_not_move_the_value(sample, random):
    moved = random.sample(sample, len(sample))
    assert mean_interval(moved, rng=0, num_resamples=100).value == pytest.approx(
        mean_interval(sample, rng=0, num_resamples=100).value
    )


@property_test
@given(values, methods, st.sampled_from([-2.0, 0.5, 4.0]), st.sampled_from([-1.0, 0.0, 3.0]))
def test_intervals_follow_a_change_of_scale(sample, method, factor, shift):
    options = {"method": method, "num_resamples": 200, "rng": 0}
    before = limits(mean_interval(sample, **options))
    after = limits(mean_interval([factor * value + shift for value in sample], **options))
    expected = sorted(factor * limit + shift for limit in before)
    np.testing.assert_allclose(after, expected, atol=1e-9)


@property_test
@given(values, methods)
def test_a_higher_level_is_no_narrower(sample, method):
    narrow = mean_interval(sample, level=0.5, method=method, num_resamples=200, rng=0)
    wide = mean_interval(sample, level=0.9, method=method, num_resamples=200, rng=0)
    if not math.isnan(wide.low):
        assert wide.low <= narrow.low + 1e-12
        assert wide.high >= narrow.high - 1e-12


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"values": []}, "values is"),
        ({"values": [1.0, math.inf]}, r"values\[1\] is inf"),
        ({"level": 1.0}, "level is 1.0; allowed: numbers between 0 and 1"),
        ({"level": 0.0}, "level is 0.0"),
        ({"method": "basic"}, "method is 'basic'; allowed: 'bca' or 'percentile'"),
        ({"num_resamples": 99}, "num_resamples is 99; allowed: whole numbers from 100"),
        ({"rng": "seed"}, "rng is 'seed'"),
    ],
)
def test_bad_input_is_refused(arguments, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        mean_interval(**({"values": [0.1, 0.2], "rng": 0} | arguments))


def test_bad_queries_are_refused():
    with pytest.raises(InvalidInput, match=r"queries is .*at least one point"):
        bootstrap_over_queries([], lambda _: 0.0, rng=0)
    with pytest.raises(InvalidInput, match=r"len\(queries\) is 1; allowed: 2, the length of x"):
        tradeoff_intervals(["a"], [0.1, 0.2], [0.1, 0.2], rng=0)
