"""What the records say: shares of each model, and the paired differences that the claims are about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from benchmarks.ablation_study.asking import KEPT
from benchmarks.ablation_study.sets import SETS
from benchmarks.ablation_study.variants import BEGINNING, CROSS_ENCODER, EXPERT
from benchmarks.group_means import mean_of_means
from evenmesh_core.arrays import FloatArray
from evenmesh_core.sparse_means import difference_interval

MARGIN: Final = 0.01
"""A gain is refuted below it, and a loss of less is none."""

Row = Mapping[str, Any]
Measure = Callable[[Row], float]
Asked = Mapping[str, Mapping[int, Sequence[Row]]]
"""By variant and seed what became of each question."""

EXACT: Final = "exact"
F1: Final = "F1"
RECALL: Final = "recall"


def _first_five(place: int) -> float:
    return float(0 <= place < KEPT)


OWN: Final[Mapping[str, Measure]] = {
    EXACT: lambda row: float(row["ranked_exact"]),
    F1: lambda row: float(row["ranked_f1"]),
    RECALL: lambda row: _first_five(row["ranked"]),
}
"""Measures of a question with a model's own best five passages."""
BM25: Final[Mapping[str, Measure]] = {
    EXACT: lambda row: float(row["found_exact"]),
    F1: lambda row: float(row["found_f1"]),
    RECALL: lambda row: _first_five(row["found"]),
}
"""The same with BM25's best five."""


@dataclass(frozen=True)
class Claim:
    """A claim of the plan.

    Attributes:
        name: in the plan.
        one: the variant that is to be better, or no worse, and whether its own ranking is used.
        other: the one that it is compared with, likewise.
        measure: of both.
        gain: whether it is to be better; else no worse.
    """

    name: str
    one: tuple[str, bool]
    other: tuple[str, bool]
    measure: str = EXACT
    gain: bool = True


CLAIMS: Final = (
    Claim("A1", ("full", True), ("full", False)),
    Claim("A2", ("full", True), ("without-rqa", True)),
    Claim("A3", ("full", True), ("without-rar", True)),
    Claim("A4", ("full", True), ("without-ranking", False), gain=False),
    Claim("A5", ("full", True), (BEGINNING, False)),
    Claim("A6", ("full", True), ("raft", False)),
    Claim("A7", ("pairs-50000", True), ("pairs-5000", True), RECALL),
    Claim("A8", ("pairs-50000", True), (EXPERT, True), RECALL, gain=False),
)


BESIDE: Final = (
    Claim("B1", ("pairs-5000", True), ("pairs-5000", False)),
    Claim("B2", ("pairs-50000", True), ("pairs-50000", False)),
    Claim("B3", ("pairs-50000", False), ("pairs-5000", False)),
    Claim("B4", ("pairs-50000", False), ("without-ranking", False)),
    Claim("B5", (CROSS_ENCODER, True), (EXPERT, True), RECALL),
    Claim("B6", (CROSS_ENCODER, True), ("pairs-50000", True), RECALL),
    Claim("B7", (CROSS_ENCODER, True), (CROSS_ENCODER, False), RECALL),
)
"""Comparisons that are not in the plan: they were made after its results, and have no verdict."""


def share(rows: Mapping[int, Sequence[Row]], measure: Measure) -> dict[str, float]:
    """Return the mean of a measure in each data set, over its questions and the seeds."""
    of_set = _by_set(rows, measure, sorted(rows))
    return {name: float(values.mean()) for name, values in of_set.items()}


def compared(asked: Asked, claim: Claim) -> list[dict[str, Any]]:
    """Return the paired differences of a claim: in each data set, and their mean; none without a common seed.

    Rows have ``difference``, ``low`` and ``high``, the number of ``questions`` and ``seeds``, and that of the
    mean ``by_seed``, the difference of each seed.
    """
    seeds = sorted(asked.get(claim.one[0], {}).keys() & asked.get(claim.other[0], {}).keys())
    if not seeds:
        return []
    together = differences(asked, claim, seeds)
    rows: list[dict[str, Any]] = []
    for name, values in together.items():
        found = difference_interval(values)
        rows.append(_row(claim, name, seeds, values.size, found.value, found.low, found.high))
    mean, low, high = mean_of_means(list(together.values()))
    by_seed = [mean_of_means([*differences(asked, claim, [seed]).values()], resamples=1)[0] for seed in seeds]
    rows.append(_row(claim, "mean", seeds, sum(map(len, together.values())), mean, low, high))
    rows[-1]["by_seed"] = " ".join(f"{one:.4f}" for one in by_seed)
    return rows


def differences(asked: Asked, claim: Claim, seeds: Sequence[int]) -> dict[str, FloatArray]:
    """Return the paired differences of a claim, by data set, of each question over these seeds."""
    (one, own), (other, others_own) = claim.one, claim.other
    first, second = ((OWN if ranked else BM25)[claim.measure] for ranked in (own, others_own))
    mine, theirs = _by_set(asked[one], first, seeds), _by_set(asked[other], second, seeds)
    return {name: mine[name] - theirs[name] for name in SETS}


def verdict(claim: Claim, row: Mapping[str, Any]) -> str:
    """Return what the mean of the data sets says of a claim, by the rule of the plan."""
    low, high = float(row["low"]), float(row["high"])
    if claim.gain:
        return "holds" if low > 0 else "refuted" if high < MARGIN else "open"
    return "holds" if low > -MARGIN else "refuted" if high < 0 else "open"


def _by_set(
    rows: Mapping[int, Sequence[Row]], measure: Measure, seeds: Sequence[int]
) -> dict[str, FloatArray]:
    """Return a measure of each question of every data set, its mean over the seeds; questions by id."""
    found = {}
    for name in SETS:
        of_seed = []
        for seed in seeds:
            some = sorted((row for row in rows[seed] if row["data"] == name), key=lambda row: row["question"])
            of_seed.append([measure(row) for row in some])
        found[name] = np.mean(of_seed, axis=0)
    return found


def _row(
    claim: Claim, data: str, seeds: Sequence[int], questions: int, value: float, low: float, high: float
) -> dict[str, Any]:
    return {
        "claim": claim.name,
        "data": data,
        "seeds": len(seeds),
        "questions": questions,
        "difference": value,
        "low": low,
        "high": high,
    }
