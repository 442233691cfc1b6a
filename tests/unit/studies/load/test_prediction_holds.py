"""The whole way from calls to a knee and its prediction, on queues that are simulated call by call."""

import heapq

import numpy as np
import pytest

from evenmesh_core.queueing import simulated_responses
from evenmesh_studies.load.analysis.histograms import Histogram
from evenmesh_studies.load.analysis.knee import find_knee
from evenmesh_studies.load.analysis.prediction import ServiceTimes, off_by, predictions
from evenmesh_studies.load.calls.arrivals import poisson
from evenmesh_studies.load.calls.call import Call, Outcome
from evenmesh_studies.load.resource_monitor import ResourceUsage
from evenmesh_studies.load.settings import CallSettings
from evenmesh_studies.load.step import Distribution, Step, StepResult

SECONDS = 800.0


def _measured(step: Step, calls: list[Call]) -> StepResult:
    return StepResult(step, calls, Histogram(), Distribution.of([]), SECONDS, 0.0, 1, ResourceUsage())


def _open(rate: float, servers: int, services: np.random.Generator, scv: float) -> StepResult:
    """Poisson arrivals at servers that take whoever came first."""
    due = poisson(rate, SECONDS, 5)
    lengths = services.gamma(1 / scv, scv, size=len(due))
    ended = due + simulated_responses(due, lengths, replicas=1, servers=servers)
    calls = [Call(at, at, end, Outcome()) for at, end in zip(due.tolist(), ended.tolist(), strict=True)]
    return _measured(Step(f"open-{rate}", "open", SECONDS, CallSettings(), rate=rate), calls)


def _closed(callers: int, servers: int, services: np.random.Generator, scv: float) -> StepResult:
    """Callers who ask again at once."""
    free = [0.0] * servers
    waiting = [0.0] * callers
    calls = []
    while (due := heapq.heappop(waiting)) < SECONDS:
        ended = max(due, heapq.heappop(free)) + services.gamma(1 / scv, scv)
        heapq.heappush(free, ended)
        heapq.heappush(waiting, ended)
        calls.append(Call(due, due, ended, Outcome()))
    return _measured(Step(f"closed-{callers}", "closed", SECONDS, CallSettings(), callers=callers), calls)


@pytest.mark.parametrize("scv", [0.1, 1.0], ids=["regular", "exponential"])
@pytest.mark.parametrize("servers", [1, 2, 4])
def test_the_knee_is_where_it_was_predicted(servers: int, scv: float) -> None:
    services = np.random.default_rng([servers, round(10 * scv)])
    closed = [_closed(callers, servers, services, scv) for callers in (1, 2, 4, 8, 16)]
    times = ServiceTimes.of(closed)
    assert times is not None
    assert times.parallel == servers
    loads = [_open(share * servers, servers, services, scv) for share in np.linspace(0.1, 0.98, 12)]
    knee = find_knee(closed[0], loads, 0)
    assert knee.reached
    shared, in_turn, several, _ = predictions(times)
    # These servers take calls one after the other; that they would share them is the safe side.
    assert off_by(in_turn.knee, knee.rate) == pytest.approx(0, abs=0.15)
    assert off_by(several.knee, knee.rate) == pytest.approx(0, abs=0.15)
    assert -0.35 < off_by(shared.knee, knee.rate) < 0.15
    assert shared.knee <= in_turn.knee * 1.03
