"""Predict the knee by queueing models of the closed-loop measurements."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy.optimize import isotonic_regression

from evenmesh_core.queueing import flow_equivalent, g_g_c_wait, m_g_1_wait, rate_at, throughput_curve
from evenmesh_studies.load.analysis.knee import FACTOR
from evenmesh_studies.load.step import StepResult


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction of one model.

    Attributes:
        model: its name.
        knee: calls per second at which calls take ``FACTOR`` times as long as alone.
        saturation: largest possible calls per second.
        response_ms: mean latency by rate, ``inf`` from saturation on.
    """

    model: str
    knee: float
    saturation: float
    response_ms: Callable[[float], float]


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """The input of the models.

    Attributes:
        callers: numbers of callers, ascending from 1.
        throughputs: calls per second each number completed.
        service_s: mean time of a call alone.
        service_scv: their variance over their squared mean.
    """

    callers: tuple[int, ...]
    throughputs: tuple[float, ...]
    service_s: float
    service_scv: float

    @classmethod
    def of(cls, closed: Sequence[StepResult]) -> "ServiceTimes | None":
        """Return the input from closed-loop steps; None without a step of a single caller."""
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
        """Number of servers of the classical models: calls served at once at saturation."""
        return max(1, round(max(self.throughputs) * self.service_s))


def predictions(times: ServiceTimes) -> list[Prediction]:
    """Return the predictions of all models, the preferred first.

    In the first, calls share the mesh (batches, processors), and only the mean service time counts. In the
    second they are served one after the other, and similar calls wait less, by Allen and Cunneen's factor. A
    mesh lies between. The classical models assume servers of equal speed.
    """
    # More concurrent calls do not lower throughput; where they seem to, it is noise.
    curve = throughput_curve(times.callers, isotonic_regression(times.throughputs).x)
    most = float(curve[-1])
    service, scv, servers = times.service_s, times.service_scv, times.parallel
    limit = FACTOR * service

    def station(rate: float) -> float:
        return flow_equivalent(rate, curve).response_s if rate > 0 else service

    def in_turn(rate: float) -> float:
        return service + (station(rate) - service) * (1 + scv) / 2

    def several(rate: float) -> float:
        return service + g_g_c_wait(rate, service, servers, arrival_scv=1.0, service_scv=scv)

    def one(rate: float) -> float:
        # A single server as fast as all together: its waiting times are right at high loads.
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
    """Return the relative error of a prediction; ``nan`` without a measurement."""
    return predicted / measured - 1 if measured > 0 else math.nan


def _in_ms(response: Callable[[float], float]) -> Callable[[float], float]:
    return lambda rate: 1e3 * response(rate)
