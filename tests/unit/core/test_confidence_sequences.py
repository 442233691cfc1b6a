"""Confidence sequences: the formula by hand, what they promise, and how they narrow."""

from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_core.confidence_sequences import empirical_bernstein_sequence
from evenmesh_core.errors import InvalidInput

UNIT = st.floats(0, 1)


def test_after_one_sample_nothing_is_known() -> None:
    found = empirical_bernstein_sequence([1.0])
    # λ_1 = 1/2, so the half-width is (log 40 + 4 (1 − 1/2)² ψ(1/2)) / (1/2), far above 1.
    assert (found.low.tolist(), found.high.tolist()) == ([0.0], [1.0])


def test_the_interval_of_equal_values_by_hand() -> None:
    # While every bet is capped at 1/2, the weighted mean of ones is 1, and only the ends below 1 are seen:
    # 1 − (log 40 + Σ v_i ψ(1/2)) / (t / 2), v_i = 4 (1 − μ̂_{i−1})², μ̂_i = (1/2 + i) / (i + 1).
    t = 30
    psi = (log(2) - 1 / 2) / 4
    means = [1 / 2] + [(1 / 2 + i) / (i + 1) for i in range(1, t)]
    low = 1 - (log(40) + sum(4 * (1 - mean) ** 2 * psi for mean in means)) / (t / 2)

    found = empirical_bernstein_sequence(np.ones(t))

    assert found.low[-1] == pytest.approx(low, abs=1e-12)
    assert found.high[-1] == 1.0


def test_the_interval_of_two_values_by_hand() -> None:
    # x = 1, 0 at level 1/2, where bets are not capped (c close to 1): a = 1/2, log(2 / a) = log 4.
    found = empirical_bernstein_sequence([1.0, 0.0] * 40, level=0.5, largest_bet=0.99)
    x = [1.0, 0.0] * 40
    means, variances = [1 / 2], [1 / 4]
    total, squares, staked, won, paid = 1 / 2, 1 / 4, 0.0, 0.0, 0.0
    for i, value in enumerate(x, start=1):
        bet = min(sqrt(2 * log(4) / (variances[-1] * i * log(1 + i))), 0.99)
        staked, won = staked + bet, won + bet * value
        paid += 4 * (value - means[-1]) ** 2 * (-log(1 - bet) - bet) / 4
        total += value
        means.append(total / (i + 1))
        squares += (value - means[-1]) ** 2
        variances.append(squares / (i + 1))
    half = (log(4) + paid) / staked
    assert found.high[-1] <= won / staked + half + 1e-12
    assert found.low[-1] >= won / staked - half - 1e-12
    assert found.width[-1] == pytest.approx(2 * half, rel=0.05)


def test_all_intervals_hold_together_as_often_as_promised() -> None:
    rng = np.random.default_rng(0)
    missed = 0
    for share in (0.02, 0.3, 0.5, 0.9):
        for _ in range(100):
            found = empirical_bernstein_sequence((rng.random(300) < share).astype(float), level=0.9)
            missed += bool(np.any((found.low > share) | (found.high < share)))
    assert missed <= 0.1 * 400


def test_what_varies_little_is_known_sooner() -> None:
    steady = empirical_bernstein_sequence(np.full(200, 0.6)).first_within(0.1)
    wild = empirical_bernstein_sequence(np.tile([1.0, 0.2], 100)).first_within(0.1)
    assert steady is not None
    assert wild is None


@given(st.lists(UNIT, min_size=1, max_size=60), UNIT)
def test_intervals_only_narrow_and_later_values_change_none_before(
    values: list[float], next_one: float
) -> None:
    found = empirical_bernstein_sequence(values)
    longer = empirical_bernstein_sequence([*values, next_one])
    assert np.all(found.low <= found.high)
    assert np.all(np.diff(found.width) <= 0)
    assert np.array_equal(longer.low[:-1], found.low)
    assert np.array_equal(longer.high[:-1], found.high)


def test_first_within_counts_samples_from_one() -> None:
    found = empirical_bernstein_sequence(np.ones(40))
    assert found.first_within(1.0) == 1
    first = found.first_within(0.3)
    assert first is not None
    assert found.width[first - 1] <= 0.3 < found.width[first - 2]


@pytest.mark.parametrize(
    ("values", "level", "largest_bet"),
    [([], 0.9, 0.5), ([1.5], 0.9, 0.5), ([0.5], 1.0, 0.5), ([0.5], 0.0, 0.5), ([0.5], 0.9, 1.0)],
)
def test_bad_input_is_refused(values: list[float], level: float, largest_bet: float) -> None:
    with pytest.raises(InvalidInput):
        empirical_bernstein_sequence(values, level=level, largest_bet=largest_bet)
