"""Paired differences of two systems for several agents, each of which counts alike, and what they decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.group_means import mean_of_means
from evenmesh_core.arrays import FloatArray
from evenmesh_core.sparse_means import difference_interval

MARGIN: Final = 0.01
"""A gain is refuted below it."""
LOSS: Final = 0.02
"""A loss of less is none."""
MEAN: Final = "mean"
"""Name of the row of all agents."""
_LEVEL: Final = 0.95


def compared(
    claim: str, differences: Mapping[str, FloatArray], *, seeds: int, together: int
) -> list[dict[str, Any]]:
    """Return a row for each agent and one for their mean.

    Intervals have 95 %. ``low_of_all`` and ``high_of_all`` of an agent are so wide that several of them hold
    together with 95 % (Bonferroni).

    Args:
        claim: name of the claim.
        differences: of each agent, query by query.
        seeds: that they are means over.
        together: intervals that hold together.
    """
    rows: list[dict[str, Any]] = []
    for agent, values in differences.items():
        found = difference_interval(values)
        wide = difference_interval(values, level=1 - (1 - _LEVEL) / together)
        rows.append(
            _row(claim, agent, seeds, values.size, (found.value, found.low, found.high))
            | {"low_of_all": wide.low, "high_of_all": wide.high}
        )
    mean = mean_of_means(list(differences.values()))
    return [*rows, _row(claim, MEAN, seeds, sum(map(len, differences.values())), mean)]


def verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what the mean of the agents says of a claim that something is gained."""
    row = next(row for row in rows if row["agent"] == MEAN)
    return "holds" if float(row["low"]) > 0 else "refuted" if float(row["high"]) < MARGIN else "open"


def verdict_of_each(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what the agents say of a claim that none of them loses."""
    agents = [row for row in rows if row["agent"] != MEAN]
    if any(float(row["high_of_all"]) < 0 for row in agents):
        return "refuted"
    return "holds" if all(float(row["low"]) > -LOSS for row in agents) else "open"


def _row(
    claim: str, agent: str, seeds: int, queries: int, found: tuple[float, float, float]
) -> dict[str, Any]:
    difference, low, high = found
    return {
        "claim": claim,
        "agent": agent,
        "seeds": seeds,
        "queries": queries,
        "difference": difference,
        "low": low,
        "high": high,
        "low_of_all": "",
        "high_of_all": "",
    }
