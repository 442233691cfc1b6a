"""Where the knee is."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_studies.load.analysis.knee import crossing, find_knee, is_overloaded, slo_rate_of
from evenmesh_studies.load.step import Slo


def test_between_loads_the_logarithm_is_a_line() -> None:
    # From 1 to 4 over rates 2 to 4: 2 is half of the way.
    rate, reached = crossing(np.array([1.0, 2.0, 4.0]), np.array([1.0, 1.0, 4.0]), 2.0)
    assert (rate, reached) == (pytest.approx(2 + (4 - 2) / 2), True)


def test_a_load_without_answers_is_beyond() -> None:
    assert crossing(np.array([1.0, 2.0]), np.array([1.0, math.inf]), 2.0) == (1.0, True)
    assert crossing(np.array([1.0]), np.array([math.inf]), 2.0) == (0.0, True)


def test_without_overload_the_largest_rate_is_reported() -> None:
    assert crossing(np.array([1.0, 2.0]), np.array([1.0, 1.5]), 2.0) == (2.0, False)


def test_latency_that_falls_with_load_is_levelled() -> None:
    # 3 and 1 are pooled to 2, which is not above the limit.
    assert crossing(np.array([1.0, 2.0, 3.0]), np.array([3.0, 1.0, 8.0]), 2.0)[0] == pytest.approx(2.0)


@given(st.floats(0.2, 5), st.floats(0.1, 4))
def test_m_m_1_has_its_knee_at_half_of_its_speed(service: float, jitter: float) -> None:
    rates = np.linspace(0.05, 0.95, 40) / service
    latencies = service / (1 - rates * service)
    found, reached = crossing(rates, latencies, 2 * service)
    assert reached
    assert found == pytest.approx(0.5 / service, rel=0.01)


def test_the_knee_of_loads_and_its_interval(make) -> None:
    rng = np.random.default_rng(0)
    idle = make(rng.exponential(100, 200), callers=1)
    # Means of 100, 150, 300: twice the idle mean is crossed in the last stretch.
    counts, means = (100, 200, 400), (100, 150, 300)
    loads = [
        make(rng.exponential(mean, count), rate=count / 10) for count, mean in zip(counts, means, strict=True)
    ]
    knee = find_knee(idle, loads, 0)
    assert knee.reached
    assert loads[1].offered_per_s < knee.rate < loads[2].offered_per_s
    assert knee.low <= knee.rate <= knee.high
    assert knee == find_knee(idle, loads, 0)


def test_a_load_whose_calls_fail_is_too_much(make) -> None:
    idle = make([100.0] * 10, callers=1)
    loads = [make([100.0] * 100, rate=10.0), make([50.0] * 200, rate=20.0, failed=range(100))]
    knee = find_knee(idle, loads, 0)
    assert (knee.rate, knee.reached) == (pytest.approx(loads[0].offered_per_s), True)
    assert is_overloaded(loads[1], 100.0)
    assert not is_overloaded(loads[0], 100.0)


def test_without_answers_there_is_no_knee(make) -> None:
    knee = find_knee(make([], callers=1), [make([1.0], rate=1.0)], 0)
    assert math.isnan(knee.rate)


def test_the_slo_holds_up_to_the_first_load_that_breaks_it(make) -> None:
    good, bad = make([100.0] * 10, rate=1.0), make([900.0] * 20, rate=2.0)
    assert slo_rate_of([bad, good], Slo(500.0)) == (good.offered_per_s, True)
    assert slo_rate_of([good], Slo(500.0)) == (good.offered_per_s, False)
    assert slo_rate_of([bad], Slo(500.0)) == (0.0, True)
