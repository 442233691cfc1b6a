"""Compare two runs: find what became slower or faster, with intervals and a verdict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from scipy.stats import binomtest

from evenmesh_core.arrays import FloatArray
from evenmesh_core.seeds import Seed, generator
from evenmesh_studies.load.analysis.resampling import block_resamples
from evenmesh_studies.load.step import StepResult

Verdict = Literal["worse", "perhaps worse", "same", "better"]
"""``worse``: the whole interval exceeds the allowance. ``perhaps worse``: part of it does."""

_QUANTITIES: Final[tuple[tuple[str, Callable[[FloatArray], FloatArray]], ...]] = (
    ("mean", lambda rows: rows.mean(axis=1)),
    ("p50", lambda rows: np.percentile(rows, 50, axis=1)),
    ("p95", lambda rows: np.percentile(rows, 95, axis=1)),
    ("p99", lambda rows: np.percentile(rows, 99, axis=1)),
)
_LEAST_FOR_P99: Final = 200
"""Fewest calls for which a p99 is compared; with fewer it is the slowest call or two."""


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one quantity of one step.

    Attributes:
        step: the step's name.
        quantity: ``latency p95``, ``first text p50`` or ``errors``.
        before: in the first run; milliseconds, or a share.
        after: in the second.
        ratio: after over before; for errors the difference.
        low: lower end of the ratio's 95 % interval.
        high: upper end.
        verdict: from the interval.
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
    """The changes between two runs.

    Attributes:
        changes: of every step that both have.
        missing: steps only the first run has.
        added: steps only the second run has.
    """

    changes: Sequence[Change]
    missing: Sequence[str]
    added: Sequence[str]

    @property
    def worse(self) -> Sequence[Change]:
        """Changes whose verdict is ``worse``."""
        return [change for change in self.changes if change.verdict == "worse"]


def compare(
    before: Sequence[StepResult],
    after: Sequence[StepResult],
    *,
    slower: float,
    errors: float,
    rng: Seed,
) -> Comparison:
    """Compare two runs, step by step.

    Args:
        before: steps of the first.
        after: steps of the second.
        slower: allowed growth of times, as a share, from 0.
        errors: allowed growth of the share of failed calls, from 0.
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


def _errors(step: str, before: StepResult, after: StepResult, allowed: float) -> Change:
    """Compare shares of failed calls by the interval of Newcombe 1998, method 10."""
    old, new = before.error_share, after.error_share
    (l1, u1), (l2, u2) = _wilson(before), _wilson(after)
    low = new - old - float(np.hypot(new - l2, u1 - old))
    high = new - old + float(np.hypot(u2 - new, old - l1))
    return Change(step, "errors", old, new, new - old, low, high, _verdict(low, high, allowed, 0.0))


def _wilson(measured: StepResult) -> tuple[float, float]:
    """Return the interval of the share of failed calls (Wilson 1927)."""
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
