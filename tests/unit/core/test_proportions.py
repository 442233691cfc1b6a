import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from evenmesh_core.errors import InvalidInput
from evenmesh_core.proportions import paired_difference_interval, wilson_interval
from evenmesh_core.significance import holm

property_test = settings(derandomize=True, deadline=None, max_examples=60)


# --- one proportion


def test_wilson_by_hand():
    """z = 2 and 4 of 10: middle (4 + 2) / 14, half √(4 · (4 · 6 / 10 + 1)) / 14."""
    level = 2 * stats.norm.cdf(2) - 1
    low, high = wilson_interval(4, 10, level=level)
    assert low == pytest.approx((6 - math.sqrt(13.6)) / 14)
    assert high == pytest.approx((6 + math.sqrt(13.6)) / 14)


@pytest.mark.parametrize(("successes", "trials"), [(0, 51), (4, 51), (5, 8), (7, 8), (8, 8), (0, 1)])
def test_wilson_is_that_of_scipy(successes, trials):
    expected = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    assert wilson_interval(successes, trials) == pytest.approx((expected.low, expected.high))


def test_rare_events_have_the_limit_of_poisson():
    """Of 1 event the lower limit is −ln(0.95) / n: the rate at which one or more come with chance 1 − 0.95."""
    low, high = wilson_interval(1, 51)
    assert low == pytest.approx(-math.log(0.95) / 51)
    assert high == pytest.approx(stats.binomtest(1, 51).proportion_ci(method="wilson").high)
    assert wilson_interval(50, 51) == (pytest.approx(1 - high), pytest.approx(1 - low))
    assert wilson_interval(3, 50)[0] > wilson_interval(3, 51)[0]


@pytest.mark.parametrize("trials", [51, 82, 100])
def test_the_interval_of_a_share_holds_every_share_often_enough(trials):
    """Exactly, by the binomial distribution: Wilson's own is at 91.8 % for 2 % of 51."""
    intervals = [wilson_interval(right, trials) for right in range(trials + 1)]
    for share in np.linspace(0.002, 0.5, 200):
        chances = stats.binom.pmf(range(trials + 1), trials, share)
        held = sum(one for one, (low, high) in zip(chances, intervals, strict=True) if low <= share <= high)
        assert held >= 0.925


def test_what_never_came_may_come():
    low, high = wilson_interval(0, 51)
    assert low == 0
    assert high == pytest.approx(1.959964**2 / (51 + 1.959964**2), rel=1e-6)


# --- a difference of two on the same trials


def profile(b, c, n, d):
    """The most likely probability of c, found by maximising the likelihood, not by the closed form."""
    low, high = max(0.0, -d), (1 - d) / 2

    def loss(q):
        terms = [(b, q + d), (c, q), (n - b - c, 1 - 2 * q - d)]
        return -sum(k * math.log(max(p, 1e-300)) for k, p in terms if k)

    return optimize.minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-12}).x


@pytest.mark.parametrize(
    ("b", "c", "n"), [(0, 2, 63), (1, 9, 82), (2, 1, 82), (12, 3, 40), (5, 5, 30), (1, 0, 10)]
)
def test_the_limits_are_where_the_score_is_the_quantile(b, c, n):
    z = stats.norm.ppf(0.975)
    for d, sign in zip(paired_difference_interval(b, c, n), (1, -1), strict=True):
        q = profile(b, c, n, d)
        score = (b - c - n * d) / math.sqrt(n * (2 * q + d - d * d))
        assert score == pytest.approx(sign * z, rel=1e-4)


@pytest.mark.parametrize("n", [5, 63, 1000])
def test_systems_that_never_differ_by_hand(n):
    """n d² = z² |d| (1 − |d|), so |d| = z² / (n + z²)."""
    z2 = stats.norm.ppf(0.975) ** 2
    assert paired_difference_interval(0, 0, n) == pytest.approx((-z2 / (n + z2), z2 / (n + z2)))


def test_a_system_that_is_always_right_alone():
    low, high = paired_difference_interval(7, 0, 7)
    assert high == 1
    assert 0.2 < low < 1
    assert paired_difference_interval(0, 7, 7) == pytest.approx((-high, -low))


@property_test
@given(st.integers(1, 40), st.data())
def test_limits_hold_the_estimate_and_change_sides_with_the_systems(n, data):
    b = data.draw(st.integers(0, n))
    c = data.draw(st.integers(0, n - b))
    low, high = paired_difference_interval(b, c, n)
    assert -1 <= low <= (b - c) / n <= high <= 1
    assert low < high
    assert paired_difference_interval(c, b, n) == pytest.approx((-high, -low), abs=1e-9)


@pytest.mark.parametrize(("n", "differing"), [(63, 0.03), (82, 0.06), (100, 0.05)])
def test_a_true_difference_of_0_is_rarely_excluded_where_few_pairs_differ(n, differing):
    """Exact: of all outcomes, weighed by their probability. The bootstrap excluded 0 in 10 % of cases."""
    missed = 0.0
    for differ in range(n + 1):
        share = stats.binom.pmf(differ, n, differing)
        for b in range(differ + 1) if share > 1e-9 else ():
            low, high = paired_difference_interval(b, differ - b, n)
            missed += share * stats.binom.pmf(b, differ, 0.5) * (not low <= 0 <= high)
    assert missed <= 0.055


@pytest.mark.parametrize(
    ("function", "arguments", "complaint"),
    [
        (wilson_interval, (1, 0), "trials is 0"),
        (wilson_interval, (3, 2), "successes is 3"),
        (paired_difference_interval, (3, 2, 4), "only_second is 2; allowed: whole numbers from 0 to 1"),
        (paired_difference_interval, (5, 0, 4), "only_first is 5"),
    ],
)
def test_impossible_counts_are_refused(function, arguments, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        function(*arguments)
    with pytest.raises(InvalidInput, match="level is 1"):
        wilson_interval(1, 2, level=1)


@pytest.mark.parametrize("level", [math.nextafter(1.0, 0.0), math.nextafter(0.0, 1.0)])
def test_any_level_between_0_and_1_has_limits(level):
    for low, high in (
        wilson_interval(2, 5, level=level),
        paired_difference_interval(3, 1, 5, level=level),
        paired_difference_interval(0, 0, 5, level=level),
        paired_difference_interval(5, 0, 5, level=level),
    ):
        assert -1 <= low <= high <= 1
    low, high = wilson_interval(2, 5, level=math.nextafter(1.0, 0.0))
    z2 = stats.norm.isf(2**-54) ** 2
    assert high - low == pytest.approx(2 * math.sqrt(z2 * (6 / 5 + z2 / 4)) / (5 + z2))


# --- families


def test_holm_by_hand():
    """Sorted 0.01, 0.02, 0.04 times 3, 2, 1: 0.03, 0.04, 0.04; and 0.03 · 1 may not be below 0.04 before it."""
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.03, 0.02]) == pytest.approx([0.04, 0.04])
    assert holm([0.6, 0.7]) == pytest.approx([1.0, 1.0])


def test_a_test_without_a_value_is_no_part_of_the_family():
    np.testing.assert_allclose(holm([math.nan, 0.02, 0.5]), [math.nan, 0.04, 0.5])
    assert np.isnan(holm([math.nan])).all()


@property_test
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_adjusted_values_keep_the_order_and_lie_between_the_value_and_bonferroni(p_values):
    found = holm(p_values)
    for p, adjusted in zip(p_values, found, strict=True):
        assert p <= adjusted <= min(1, p * len(p_values)) + 1e-12
    assert (np.diff(found[np.argsort(p_values, kind="stable")]) >= 0).all()
