"""Two runs: what became slower or faster, how sure that is, and whether it may pass."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from scipy.stats import binomtest

from ragcore.arrays import FloatArray
from ragcore.seeds import Seed, generator
from ragmesh.bench.resampling import block_resamples
from ragmesh.bench.step import Measured

Verdict = Literal["worse", "perhaps worse", "same", "better"]
"""Worse: by more than is allowed, surely. Perhaps: it may be, the interval says neither."""

_QUANTITIES: Final[tuple[tuple[str, Callable[[FloatArray], FloatArray]], ...]] = (
    ("mean", lambda rows: rows.mean(axis=1)),
    ("p50", lambda rows: np.percentile(rows, 50, axis=1)),
    ("p95", lambda rows: np.percentile(rows, 95, axis=1)),
    ("p99", lambda rows: np.percentile(rows, 99, axis=1)),
)
_LEAST_FOR_P99: Final = 200
"""Calls below which a p99 is the slowest call or two, and is not compared."""


@dataclass(frozen=True, slots=True)
class Change:
    """How one quantity of one step changed.

    Attributes:
        step: the step's name.
        quantity: ``latency p95``, ``first text p50`` or ``errors``.
        before: in the first run; milliseconds, or a share.
        after: in the second.
        ratio: after over before; for errors the difference.
        low: lower end of the ratio's 95 % interval.
        high: upper end.
        verdict: what follows.
    """

    step: str
    quantity: str
    before: float
    after: float
    ratio: float
    low: float
    high: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs beside each other.

    Attributes:
        changes: of every step that both have.
        missing: steps of the first run that the second has not.
        added: steps of the second that the first has not.
    """

    changes: Sequence[Change]
    missing: Sequence[str]
    added: Sequence[str]

    @property
    def worse(self) -> Sequence[Change]:
        """What is surely worse."""
        return [change for change in self.changes if change.verdict == "worse"]


def compare(
    before: Sequence[Measured],
    after: Sequence[Measured],
    *,
    slower: float,
    errors: float,
    rng: Seed,
) -> Comparison:
    """Compares two runs, step by step.

    Args:
        before: steps of the first.
        after: steps of the second.
        slower: by which share a time may grow, from 0.
        errors: by how much the share of failed calls may grow, from 0.
        rng: draws resamples of calls.
    """
    draws = generator(rng)
    mine = {one.step.name: one for one in after}
    theirs = {one.step.name: one for one in before}
    changes = []
    for name, first in theirs.items():
        if (second := mine.get(name)) is not None:
            changes.extend(
                _times(name, "latency", first.latencies_ms(), second.latencies_ms(), slower, draws)
            )
            changes.extend(_times(name, "first text", first.first_ms(), second.first_ms(), slower, draws))
            changes.append(_errors(name, first, second, errors))
    return Comparison(
        changes, [name for name in theirs if name not in mine], [name for name in mine if name not in theirs]
    )


def _times(
    step: str,
    what: str,
    before: FloatArray,
    after: FloatArray,
    slower: float,
    draws: np.random.Generator,
) -> list[Change]:
    first, second = before[~np.isnan(before)], after[~np.isnan(after)]
    if len(first) < 2 or len(second) < 2:
        return []
    drawn = block_resamples(first, draws), block_resamples(second, draws)
    found = []
    for name, statistic in _QUANTITIES:
        if name == "p99" and min(len(first), len(second)) < _LEAST_FOR_P99:
            continue
        old, new = (float(statistic(values[None, :])[0]) for values in (first, second))
        low, high = np.percentile(statistic(drawn[1]) / statistic(drawn[0]), [2.5, 97.5])
        verdict = _verdict(float(low), float(high), 1 + slower, 1.0)
        found.append(Change(step, f"{what} {name}", old, new, new / old, float(low), float(high), verdict))
    return found


def _errors(step: str, before: Measured, after: Measured, allowed: float) -> Change:
    """Failed calls, with the interval of a difference of shares (Newcombe 1998, method 10)."""
    old, new = before.error_share, after.error_share
    (l1, u1), (l2, u2) = _wilson(before), _wilson(after)
    low = new - old - float(np.hypot(new - l2, u1 - old))
    high = new - old + float(np.hypot(u2 - new, old - l1))
    return Change(step, "errors", old, new, new - old, low, high, _verdict(low, high, allowed, 0.0))


def _wilson(measured: Measured) -> tuple[float, float]:
    """The interval of the share of failed calls (Wilson 1927)."""
    calls = measured.counted
    if not calls:
        return 0.0, 1.0
    found = binomtest(sum(not call.ok for call in calls), len(calls)).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def _verdict(low: float, high: float, most: float, unchanged: float) -> Verdict:
    if low > most:
        return "worse"
    if high > most:
        return "perhaps worse"
    return "better" if high < unchanged else "same"
