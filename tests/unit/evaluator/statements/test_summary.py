"""What statements say of a provider's days."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from evenmesh_evaluator.domain import Configuration, ProviderDay
from evenmesh_evaluator.statements.summary import (
    MAX_CONFIGURATIONS,
    Privacy,
    Window,
    discrete_laplace_variance,
    state,
)

A, B = Configuration("zoo"), Configuration("zoo", alpha=2.0)
OPEN = Privacy(min_asks=1)
WEEK = Window(100, 106)


def _day(configuration: Configuration, day: int, shares: list[tuple[float, float]]) -> ProviderDay:
    """A day of asks with (exposure, target)."""
    exposure, target = np.array(shares).T
    return ProviderDay(
        configuration,
        day,
        num_found=len(shares),
        num_shown=int((exposure > 0).sum()),
        num_cited=1,
        num_targeted=len(shares),
        exposure=exposure.sum(),
        exposure_squares=(exposure**2).sum(),
        target=target.sum(),
        target_squares=(target**2).sum(),
        owed_squares=((target - exposure) ** 2).sum(),
        exposure_targeted=exposure.sum(),
    )


def test_means_and_intervals_are_those_of_the_asks_of_all_days():
    """Student's interval of the four asks and two more, at the ends of the range."""
    shares = [(0.4, 0.2), (0.0, 0.2), (0.6, 0.5), (0.2, 0.4)]
    days = [_day(A, 100, shares[:1]), _day(A, 103, shares[1:])]
    (one,) = state("acme", "P", WEEK, days, OPEN).configurations
    assert (one.num_found, one.num_shown, one.num_cited) == (4, 3, 2)
    exposure, target = np.array(shares).T
    for found, values in ((one.exposure, exposure), (one.target, target), (one.owed, target - exposure)):
        lowest = -1.0 if found is one.owed else 0.0
        more = [*values, lowest, 1.0]
        low, high = stats.t.interval(0.95, 5, np.mean(more), stats.sem(more))
        assert found.mean == pytest.approx(values.mean())
        assert found.high == pytest.approx(min(high, 1.0))
        assert found.low == pytest.approx(max(low, lowest))


def test_a_configuration_with_few_asks_is_left_out_and_counted():
    days = [_day(A, 100, [(0.4, 0.2)] * 9), _day(B, 100, [(0.4, 0.2)] * 10)]
    stated = state("acme", "P", WEEK, days, Privacy(min_asks=10))
    assert [one.configuration for one in stated.configurations] == [B]
    assert stated.num_left_out == 1


def test_at_most_a_hundred_configurations_are_stated_most_asks_first():
    days = [_day(Configuration(f"c{number}"), 100, [(0.1, 0.1)] * (number + 1)) for number in range(103)]
    stated = state("acme", "P", WEEK, days, OPEN)
    assert len(stated.configurations) == MAX_CONFIGURATIONS
    assert stated.configurations[0].num_found == 103
    assert stated.num_left_out == 3


def test_without_known_merit_there_is_no_target():
    day = replace(_day(A, 100, [(0.4, 0.0)] * 12), num_targeted=0, exposure_targeted=0.0, owed_squares=0.0)
    (one,) = state("acme", "P", WEEK, [day], OPEN).configurations
    assert one.exposure.mean == pytest.approx(0.4)
    assert (one.target.mean, one.owed.mean) == (None, None)


def _noisy(secret: bytes, days: list[ProviderDay], *, tenant: str = "acme", window: Window = WEEK) -> int:
    privacy = Privacy(min_asks=1, epsilon=1.0, secret=secret)
    return state(tenant, "P", window, days, privacy).configurations[0].num_found


def test_noise_is_the_same_when_asked_again_and_another_for_other_tenants_days_and_secrets():
    days = [_day(A, 100, [(0.4, 0.2)] * 5_000)]
    first = _noisy(b"secret", days)
    assert first == _noisy(b"secret", days)
    others = [
        _noisy(b"other", days),
        _noisy(b"secret", days, tenant="other"),
        _noisy(b"secret", [_day(A, 100, [(0.4, 0.2)] * 5_001)]),
        _noisy(b"secret", days, window=Window(99, 106)),
    ]
    # 7 or 8 draws of a standard deviation of 14 each: two sums are equal with a chance of about 1 %.
    assert sum(other == first for other in others) <= 1


def test_a_window_is_the_sum_of_its_noisy_days_so_other_windows_tell_nothing_more():
    days = [_day(A, day, [(0.4, 0.2)] * 2_000) for day in range(100, 104)]
    whole = _noisy(b"s", days, window=Window(100, 103))
    parts = [_noisy(b"s", [day], window=Window(day.day, day.day)) for day in days]
    assert whole == sum(parts)


def test_noise_has_the_spread_that_the_budget_says():
    day = _day(A, 100, [(0.4, 0.2)] * 1_000)
    drawn = np.array([_noisy(b"%d" % number, [day], window=Window(100, 100)) for number in range(600)])
    # Scale 10 at epsilon 1: variance 199.8, of which an estimate from 600 draws of such tails is within 30 %.
    assert discrete_laplace_variance(10.0) == pytest.approx(199.83, abs=0.01)
    assert abs(drawn.mean() - 1_000) < 4 * (200 / 600) ** 0.5
    assert 0.7 < drawn.var() / 199.83 < 1.4


def test_with_noise_intervals_are_wider_and_what_is_left_out_is_not_counted():
    days = [_day(A, 100, [(0.4, 0.2), (0.2, 0.2)] * 500)]
    (exact,) = state("acme", "P", Window(100, 100), days, OPEN).configurations
    noisy = state("acme", "P", Window(100, 100), days, Privacy(1, 0.5, b"s"))
    (one,) = noisy.configurations
    assert noisy.num_left_out is None
    assert one.exposure.high - one.exposure.low > 2 * (exact.exposure.high - exact.exposure.low)


def test_intervals_cover_the_noise_of_counts_beside_that_of_sums():
    """Of 5,000 asks the interval is all noise: that of the count moves a mean of 0.9 nearly as far as the sum's."""
    day = _day(A, 100, [(0.85, 0.55), (0.95, 0.65)] * 2_500)
    covered = dict.fromkeys(("exposure", "target", "owed"), 0)
    for number in range(1_000):
        privacy = Privacy(1, 1.0, b"%d" % number)
        (one,) = state("acme", "P", Window(100, 100), [day], privacy).configurations
        for name, true in (("exposure", 0.9), ("target", 0.6), ("owed", -0.3)):
            found = getattr(one, name)
            covered[name] += found.low <= true <= found.high
    # 95 % of 1,000 with three standard deviations; without the count's noise 885 and 922 are covered.
    assert min(covered.values()) > 929
    assert max(covered.values()) < 971
