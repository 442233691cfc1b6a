"""How far a mesh goes: the rate at which calls take twice as long as on an idle one, and that under an SLO.

With one exponential server latency doubles just where throughput over latency ("power") is largest: below it
the mesh idles, above it calls mostly wait (Kleinrock 1979, "Power and deterministic rules of thumb for
probabilistic problems in computer communications").
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import isotonic_regression

from ragcore.arrays import FloatArray, float_array, number, same_length
from ragcore.seeds import Seed, generator
from ragmesh.bench.resampling import RESAMPLES, block_resamples
from ragmesh.bench.step import Measured, Slo

FACTOR: Final = 2.0
"""How many times as long as on an idle mesh calls take at the knee."""
LOST: Final = 0.01
"""Share of calls that may fail before a load counts as too much."""


@dataclass(frozen=True, slots=True)
class Knee:
    """A rate, calls per second.

    Attributes:
        rate: the rate; the largest that was tried where ``reached`` is False, 0 where the least was too much.
        low: lower end of its 95 % interval over calls; ``nan`` without one.
        high: upper end.
        reached: whether a larger rate was tried, and was too much.
        idle_ms: mean latency of the idle mesh.
    """

    rate: float
    low: float
    high: float
    reached: bool
    idle_ms: float


def crossing(rates: FloatArray, latencies: FloatArray, limit: float) -> tuple[float, bool]:
    """Gives the rate at which latency reaches a limit, and whether it does.

    Latency cannot fall with load: what does is noise, and is levelled (isotonic regression, Robertson et al.
    1988). Between loads its logarithm is interpolated linearly; a load without an answer is beyond the limit.

    Args:
        rates: vector [P] of calls per second, rising.
        latencies: vector [P] of latencies, above 0; ``inf`` where the load was too much.
        limit: above 0.

    Returns:
        The rate: 0 where the least one is too much, the largest where none is.

    Raises:
        InvalidInput: an argument out of range.
    """
    x = float_array("rates", rates, low=0.0)
    number("limit", limit, low=0.0)
    same_length("rates", rates, "latencies", latencies)
    y = _levelled(np.asarray(latencies, dtype=np.float64))
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


def find_knee(idle: Measured, loads: Sequence[Measured], rng: Seed, factor: float = FACTOR) -> Knee:
    """Finds the knee of loads at rates.

    Args:
        idle: a step of one caller.
        loads: steps of open loops, at least one of them with answers.
        rng: draws resamples of calls.
        factor: how many times as long as on an idle mesh is at the knee.
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
    rate, reached = crossing(rates, means, factor * idle_ms)
    draws = generator(rng)
    resampled = [
        block_resamples(one.latencies_ms(), draws).mean(axis=1)
        if math.isfinite(mean)
        else np.full(RESAMPLES, math.inf)
        for one, mean in zip(known, means, strict=True)
    ]
    limits = factor * block_resamples(alone, draws).mean(axis=1)
    table = np.stack(resampled, axis=1)
    found = [crossing(rates, row, limit)[0] for row, limit in zip(table, limits, strict=True)]
    low, high = np.percentile(found, [2.5, 97.5]) if reached else (math.nan, math.nan)
    return Knee(rate, float(low), float(high), reached, idle_ms)


def within_slo(loads: Sequence[Measured], slo: Slo) -> tuple[float, bool]:
    """Gives the largest rate up to which each load had its share of good calls, and whether a larger one was
    tried; 0 where the least had not."""
    known = sorted((one for one in loads if len(one.counted)), key=lambda one: one.offered_per_s)
    held = 0.0
    for one in known:
        if one.good_share(slo) < slo.share:
            return held, True
        held = one.offered_per_s
    return held, False


def too_much(measured: Measured, idle_ms: float, factor: float = FACTOR) -> bool:
    """Whether a load is clearly beyond the knee: a larger one would tell nothing more."""
    return measured.error_share > LOST or _mean(measured) > 2 * factor * idle_ms


def _mean(measured: Measured) -> float:
    """Mean latency; ``inf`` where too many calls failed for it to say anything."""
    found = measured.latencies_ms()
    return math.inf if not found.size or measured.error_share > LOST else float(found.mean())


def _levelled(values: FloatArray) -> FloatArray:
    """The nearest rising values; from the first that is ``inf`` on all are."""
    finite = int(np.argmax(np.isinf(values))) if np.isinf(values).any() else len(values)
    rising = isotonic_regression(values[:finite]).x if finite else values[:0]
    return np.concatenate([rising, np.full(len(values) - finite, math.inf)])
