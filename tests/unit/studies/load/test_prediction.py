"""Where the knee should be."""

import numpy as np
import pytest

from evenmesh_studies.load.analysis.prediction import ServiceTimes, off_by, predictions


def test_one_exponential_server_is_predicted_alike_by_all_models() -> None:
    # X(n) = 1/s whatever n, scv 1: all three are M/M/1, whose knee is at half of its speed.
    times = ServiceTimes((1, 2, 4), (5.0, 5.0, 5.0), 0.2, 1.0)
    found = predictions(times)
    assert [one.knee for one in found] == pytest.approx([0.5 / 0.2] * 4)
    assert [one.saturation for one in found] == pytest.approx([5.0] * 4)
    assert found[0].response_ms(2.5) == pytest.approx(1e3 * 0.2 / (1 - 0.5))
    assert found[2].model == "Allen–Cunneen, 1 server"


def test_two_servers_are_seen_by_their_throughput() -> None:
    times = ServiceTimes((1, 2, 4), (5.0, 10.0, 10.0), 0.2, 1.0)
    assert times.parallel == 2
    station, _, several, _ = predictions(times)
    # M/M/2 doubles where C/(2 − a) = 1: a²/(4 − a²) = 1, so a = √2.
    assert station.knee == pytest.approx(np.sqrt(2) / 0.2, rel=1e-6)
    assert several.knee == pytest.approx(station.knee, rel=1e-6)


def test_noise_that_seems_to_slow_a_mesh_down_is_levelled() -> None:
    times = ServiceTimes((1, 2, 4), (5.0, 5.2, 4.8), 0.2, 1.0)
    assert predictions(times)[0].saturation == pytest.approx((5.2 + 4.8) / 2)


def test_callers_tell_the_service_times(make) -> None:
    steps = [make([100.0, 300.0], callers=1, seconds=2.0), make([100.0] * 8, callers=4, seconds=2.0)]
    times = ServiceTimes.of(steps[::-1])
    assert times is not None
    assert times.callers == (1, 4)
    assert times.service_s == pytest.approx((0.1 + 0.3) / 2)
    # Variance 0.1², mean 0.2.
    assert times.service_scv == pytest.approx(0.1**2 / 0.2**2)
    assert ServiceTimes.of(steps[1:]) is None


def test_how_far_off() -> None:
    assert off_by(1.2, 1.0) == pytest.approx(0.2)
    assert np.isnan(off_by(1.0, 0.0))


def test_calls_that_are_all_alike_wait_half_as_long_in_turn() -> None:
    # M/D/1: s + ρ·s/(2·(1 − ρ)) is 2·s where ρ/(1 − ρ) = 2, at two thirds.
    times = ServiceTimes((1, 2), (5.0, 5.0), 0.2, 0.0)
    assert predictions(times)[1].knee == pytest.approx(2 / 3 / 0.2)
