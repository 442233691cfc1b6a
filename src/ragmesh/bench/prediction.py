"""Where the knee should be: queueing models of what was measured with callers who wait."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy.optimize import isotonic_regression

from ragcore.queueing import flow_equivalent, g_g_c_wait, m_g_1_wait, rate_at, throughput_curve
from ragmesh.bench.knee import FACTOR
from ragmesh.bench.step import Measured


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one model says.

    Attributes:
        model: the model.
        knee: the rate at which calls take ``FACTOR`` times as long as alone. Calls per second.
        saturation: the rate that cannot be passed. Calls per second.
        response_ms: mean latency by rate, ``inf`` from saturation on.
    """

    model: str
    knee: float
    saturation: float
    response_ms: Callable[[float], float]


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """What the models know of a mesh.

    Attributes:
        callers: numbers of callers, rising from 1.
        throughputs: what each completed per second.
        service_s: mean time of a call alone.
        service_scv: variance of those over their squared mean.
    """

    callers: tuple[int, ...]
    throughputs: tuple[float, ...]
    service_s: float
    service_scv: float

    @classmethod
    def of(cls, closed: Sequence[Measured]) -> "ServiceTimes | None":
        """What closed loops tell; None without one of a single caller."""
        known = sorted(
            (one for one in closed if one.completed_per_s > 0 and len(one.latencies_ms())),
            key=lambda one: one.step.callers,
        )
        if not known or known[0].step.callers != 1:
            return None
        alone = known[0].latencies_ms() / 1e3
        mean = float(alone.mean())
        return cls(
            tuple(one.step.callers for one in known),
            tuple(one.completed_per_s for one in known),
            mean,
            float(alone.var() / mean**2),
        )

    @property
    def parallel(self) -> int:
        """Calls that are served at once, as saturation tells: the number of servers of classical models."""
        return max(1, round(max(self.throughputs) * self.service_s))


def predictions(times: ServiceTimes, factor: float = FACTOR) -> list[Prediction]:
    """What each model says, the one that is relied on first.

    The first takes what is inside to share the mesh (batches, processors), where only the mean of service
    times counts; the second takes it to be served one after the other, where calls that are all alike wait
    less, by Allen and Cunneen's factor. A mesh is something of both. The classical ones see servers of equal
    speed.
    """
    # More calls inside do not make a mesh slower: where they seem to, it is noise of the measurement.
    curve = throughput_curve(times.callers, isotonic_regression(times.throughputs).x)
    most = float(curve[-1])
    service, scv, servers = times.service_s, times.service_scv, times.parallel
    limit = factor * service

    def station(rate: float) -> float:
        return flow_equivalent(rate, curve).response_s if rate > 0 else service

    def in_turn(rate: float) -> float:
        return service + (station(rate) - service) * (1 + scv) / 2

    def several(rate: float) -> float:
        return service + g_g_c_wait(rate, service, servers, arrival_scv=1.0, service_scv=scv)

    def one(rate: float) -> float:
        # A single server as fast as all of them: what it says of waiting is right at high loads.
        return service + m_g_1_wait(rate, 1 / max(times.throughputs), scv)

    models = [
        ("flow-equivalent station", most, station),
        ("the same, one after the other", most, in_turn),
        (f"Allen–Cunneen, {servers} server{'s' if servers > 1 else ''}", servers / service, several),
        ("Pollaczek–Khinchine, one server", max(times.throughputs), one),
    ]
    return [
        Prediction(name, rate_at(response, limit, saturation), saturation, _in_ms(response))
        for name, saturation, response in models
    ]


def off_by(predicted: float, measured: float) -> float:
    """How far a prediction is off, as a share of what was measured; ``nan`` where nothing was."""
    return predicted / measured - 1 if measured > 0 else math.nan


def _in_ms(response: Callable[[float], float]) -> Callable[[float], float]:
    return lambda rate: 1e3 * response(rate)
