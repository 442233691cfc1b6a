"""Find the knee of a mesh, where calls take twice as long as on an idle one, and its rate within an SLO.

With one exponential server latency doubles where throughput over latency ("power") is largest: below it the
mesh idles, above it calls mostly wait (Kleinrock 1979, "Power and deterministic rules of thumb for
probabilistic problems in computer communications").
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import isotonic_regression

from evenmesh_core.arrays import FloatArray, float_array, number, same_length
from evenmesh_core.seeds import Seed, generator
from evenmesh_studies.load.analysis.resampling import RESAMPLES, block_resamples
from evenmesh_studies.load.step import Slo, StepResult

FACTOR: Final = 2.0
"""Latency at the knee as a multiple of that of the idle mesh."""
LOST: Final = 0.01
"""Share of failed calls from which a load is too much."""


@dataclass(frozen=True, slots=True)
class Knee:
    """The knee, in calls per second.

    Attributes:
        rate: the largest rate tried if ``reached`` is False; 0 if the smallest was too much.
        low: lower end of its 95 % interval over calls; ``nan`` without one.
        high: upper end.
        reached: whether a larger rate was tried and was too much.
        idle_ms: mean latency of the idle mesh.
    """

    rate: float
    low: float
    high: float
    reached: bool
    idle_ms: float


def crossing(rates: FloatArray, latencies: FloatArray, limit: float) -> tuple[float, bool]:
    """Return the rate at which latency reaches a limit, and whether it does.

    Latency cannot fall with load; a fall is noise and is levelled (isotonic regression, Robertson et al.
    1988). Between loads the logarithm is interpolated linearly. A load without answers exceeds the limit.

    Args:
        rates: vector [P] of calls per second, ascending.
        latencies: vector [P] of latencies, above 0; ``inf`` where the load was too much.
        limit: above 0.

    Returns:
        The rate: 0 if the smallest is too much, the largest if none is.

    Raises:
        InvalidInput: an argument out of range.
    """
    x = float_array("rates", rates, low=0.0)
    number("limit", limit, low=0.0)
    same_length("rates", rates, "latencies", latencies)
    y = _isotonic(np.asarray(latencies, dtype=np.float64))
    beyond = np.flatnonzero(y > limit)
    if not beyond.size:
        return float(x[-1]), False
    place = int(beyond[0])
    if place == 0:
        return 0.0, True
    if math.isinf(y[place]):
        return float(x[place - 1]), True
    share = math.log(limit / y[place - 1]) / math.log(y[place] / y[place - 1])
    return float(x[place - 1] + share * (x[place] - x[place - 1])), True


def find_knee(idle: StepResult, loads: Sequence[StepResult], rng: Seed) -> Knee:
    """Find the knee from open-loop steps.

    Args:
        idle: step with one caller.
        loads: open-loop steps, at least one of them with answers.
        rng: draws resamples of calls.
    """
    known = sorted(
        (one for one in loads if len(one.counted)), key=lambda one: (one.offered_per_s, one.step.rate)
    )
    alone = idle.latencies_ms()
    rates = np.array([one.offered_per_s for one in known])
    means = np.array([_mean(one) for one in known])
    idle_ms = float(alone.mean()) if alone.size else math.nan
    if not known or math.isnan(idle_ms):
        return Knee(math.nan, math.nan, math.nan, False, idle_ms)
    rate, reached = crossing(rates, means, FACTOR * idle_ms)
    draws = generator(rng)
    resampled = [
        block_resamples(one.latencies_ms(), draws).mean(axis=1)
        if math.isfinite(mean)
        else np.full(RESAMPLES, math.inf)
        for one, mean in zip(known, means, strict=True)
    ]
    limits = FACTOR * block_resamples(alone, draws).mean(axis=1)
    table = np.stack(resampled, axis=1)
    found = [crossing(rates, row, limit)[0] for row, limit in zip(table, limits, strict=True)]
    low, high = np.percentile(found, [2.5, 97.5]) if reached else (math.nan, math.nan)
    return Knee(rate, float(low), float(high), reached, idle_ms)


def slo_rate_of(loads: Sequence[StepResult], slo: Slo) -> tuple[float, bool]:
    """Return the largest rate up to which every load met the SLO, and whether a larger one was tried.

    The rate is 0 if the smallest load did not meet it.
    """
    known = sorted((one for one in loads if len(one.counted)), key=lambda one: one.offered_per_s)
    held = 0.0
    for one in known:
        if one.good_share(slo) < slo.share:
            return held, True
        held = one.offered_per_s
    return held, False


def is_overloaded(measured: StepResult, idle_ms: float) -> bool:
    """Return whether a load is so far beyond the knee that a larger one would add nothing."""
    return measured.error_share > LOST or _mean(measured) > 2 * FACTOR * idle_ms


def _mean(measured: StepResult) -> float:
    """Return the mean latency; ``inf`` where too many calls failed."""
    found = measured.latencies_ms()
    return math.inf if not found.size or measured.error_share > LOST else float(found.mean())


def _isotonic(values: FloatArray) -> FloatArray:
    """Return the nearest ascending values; all are ``inf`` from the first that is."""
    finite = int(np.argmax(np.isinf(values))) if np.isinf(values).any() else len(values)
    rising = isotonic_regression(values[:finite]).x if finite else values[:0]
    return np.concatenate([rising, np.full(len(values) - finite, math.inf)])
