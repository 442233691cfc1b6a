"""Means of values with a lowest and a highest one, by hand, and how often their intervals hold the mean."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit

from evenmesh_core.bounded_means import bounded_interval, too_few_away
from evenmesh_core.errors import InvalidInput


def _moments(values: np.ndarray) -> tuple[int, float, float]:
    return len(values), float(values.mean()), float(((values - values.mean()) ** 2).sum())


def test_the_interval_by_hand() -> None:
    """Of 0, 0, 0.5, 0.5 with 0 and 1: m = 2/6, Σx² = 1.5, so s² = (1.5 − 6/9) / 5 = 1/6."""
    low, high = bounded_interval(*_moments(np.array([0.0, 0.0, 0.5, 0.5])), low=0.0, high=1.0)
    half = stdtrit(5, 0.975) * math.sqrt(1 / 6 / 6)
    assert low == 0.0  # 1/3 − half is below it
    assert high == pytest.approx(1 / 3 + half)


def test_noise_in_the_sum_widens_it() -> None:
    """The variance of a mean of six values grows by 0.9 / 36."""
    moments = _moments(np.full(4, 0.5))
    low, high = bounded_interval(*moments, low=0.0, high=1.0, noise=0.9, level=0.5)
    half = stdtrit(5, 0.75) * math.sqrt(0.5 / 5 / 6 + 0.9 / 36)
    assert [low, high] == pytest.approx([0.5 - half, 0.5 + half])


def test_values_that_are_all_alike_are_no_certainty() -> None:
    """Of 20 zeros with 0 and 1: m = 1/22, Σ(x − m)² = 21/22, so s² = 1/22."""
    found = bounded_interval(20, 0.0, 0.0, low=0.0, high=1.0)
    assert found == pytest.approx([0.0, (1 + stdtrit(21, 0.975)) / 22])


@given(st.lists(st.floats(-1.0, 2.0), min_size=1, max_size=50), st.floats(0.01, 0.99))
def test_it_lies_in_the_range_and_holds_the_mean_of_the_values(values: list[float], level: float) -> None:
    count, mean, squares = _moments(np.array(values))
    low, high = bounded_interval(count, mean, squares, low=-1.0, high=2.0, level=level)
    assert -1.0 <= low <= mean + 1e-12
    assert mean - 1e-12 <= high <= 2.0


POPULATIONS = {
    "most are 0": np.array([0.0] * 72 + [0.1] * 14 + [0.5] * 10 + [1.0] * 4),
    "one of ten": np.array([0.0] * 9 + [1.0]),
    "half": np.array([0.0, 1.0]),
    "all but three of a hundred": np.array([0.0] * 3 + [1.0] * 97),
    "uniform": np.linspace(0, 1, 101),
    "in the middle": np.linspace(0.4, 0.6, 11),
}


@pytest.mark.parametrize("name", POPULATIONS)
@pytest.mark.parametrize("size", [5, 20, 100])
def test_it_holds_the_mean_of_every_population(name: str, size: int) -> None:
    """Three standard errors of 3,000 draws below 94 %: Student's t held 54 and 84 % of the first at 5 and 20."""
    rng, population = np.random.default_rng(5), POPULATIONS[name]
    held = 0
    for _ in range(3000):
        low, high = bounded_interval(*_moments(rng.choice(population, size)), low=0.0, high=1.0)
        held += low - 1e-12 <= population.mean() <= high + 1e-12
    assert held / 3000 >= 0.94 - 3 * math.sqrt(0.94 * 0.06 / 3000)


@pytest.mark.parametrize(
    ("values", "few"),
    [
        ([0.0] * 20, True),
        ([0.0] * 20 + [3.0] * 11, True),
        ([0.0] * 20 + [3.0] * 12, False),
        ([0.0] * 5 + [3.0] * 5, False),
        ([0.1] * 19 + [100.0], True),
        ([2.0, 3.0], False),
    ],
)
def test_too_few_are_away_from_the_lowest_value(values: list[float], few: bool) -> None:
    """Eleven equal values count 11, and one that is larger than all others together counts about 1."""
    assert too_few_away(*_moments(np.array(values)), low=0.0) is few


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"count": 0}, "count"),
        ({"high": 0.0}, "high"),
        ({"high": math.inf}, "high"),
        ({"level": 1.0}, "level"),
    ],
)
def test_what_has_no_interval_is_refused(wrong: dict[str, float], field: str) -> None:
    arguments = {"count": 3.0, "mean": 0.5, "squares": 0.1, "low": 0.0, "high": 1.0, "level": 0.95} | wrong
    with pytest.raises(InvalidInput, match=field):
        bounded_interval(arguments.pop("count"), arguments.pop("mean"), arguments.pop("squares"), **arguments)
