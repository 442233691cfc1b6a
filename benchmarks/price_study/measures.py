"""What the records say: expected utility at each dial, and how it differs from no sampling."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from benchmarks.price_study.rankings import ALPHAS, FIXED, ORACLE, STAGES
from evenmesh_core.arrays import FloatArray
from evenmesh_core.significance import paired_bootstrap
from evenmesh_core.sparse_means import difference_interval, differing_from

DIALS: Final = (FIXED, *(f"{one:g}" for one in ALPHAS))
SEED: Final = 0
RESAMPLES: Final = 20_000
READER: Final = 4.0
"""α at which the readers are compared."""

Utility = Mapping[tuple[str, str], Mapping[str, float]]
"""By first stage and dial the expected utility of each question."""


@dataclass(frozen=True)
class Read:
    """What one reader made of a data set.

    Attributes:
        utility: expected F1 at each first stage and dial, by question.
        exact: likewise exact match.
        best: highest F1 of any context, by question.
    """

    utility: Utility
    exact: Utility
    best: Mapping[str, float]


def read(shown: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]) -> Read:
    """Return the expected utility of what each dial shows, for the questions that were answered.

    Args:
        shown: rows of ``question``, ``stage``, ``dial``, ``contexts``.
        answers: rows of ``question``, ``context``, ``f1``, ``exact``.
    """
    scores: dict[str, dict[int, tuple[float, float]]] = defaultdict(dict)
    for row in answers:
        scores[row["question"]][row["context"]] = (row["f1"], row["exact"])
    utility: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    exact: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for row in shown:
        if known := scores.get(row["question"]):
            found = np.mean([known[context] for context in row["contexts"]], axis=0)
            place = row["stage"], row["dial"]
            utility[place][row["question"]], exact[place][row["question"]] = found.tolist()
    best = {question: max(f1 for f1, _ in some.values()) for question, some in scores.items()}
    return Read(utility, exact, best)


def compared(
    data: str, reader: str, found: Read, shown: Sequence[Mapping[str, Any]]
) -> list[dict[str, float | str]]:
    """Return a row for each first stage and dial: means over questions, and the difference from no sampling.

    The row of the oracle is held against the deterministic ranking of its own pool's first stage.
    """
    exposure: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in shown:
        if row["question"] in found.best:
            exposure[row["stage"], row["dial"]].append((row["disparity"], row["relevance"]))
    rows = []
    for stage in STAGES:
        for dial in (*DIALS, ORACLE):
            mine, fixed = found.utility.get((stage, dial), {}), found.utility.get((stage, FIXED), {})
            questions = [one for one in mine if one in fixed]
            if not questions:
                continue
            one, other = _vectors(questions, mine, fixed)
            reachable = np.array([found.best[question] > 0 for question in questions])
            # A pool without a useful passage has no EE-R, the oracle no dial: means of what there is.
            known = np.ma.masked_invalid(np.array(exposure[stage, dial], dtype=np.float64))
            disparity, relevance = np.ma.filled(known.mean(axis=0), np.nan).tolist()
            of_dial: dict[str, float | str] = {
                "data": data,
                "reader": reader,
                "stage": stage,
                "dial": dial,
                "questions": len(questions),
                "ee_d": disparity,
                "ee_r": relevance,
                "eu": float(one.mean()),
                "exact": float(np.mean([found.exact[stage, dial][question] for question in questions])),
            }
            of_dial.update(difference(one - other))
            gained = difference_interval(np.where(reachable, one - other, np.nan))
            of_dial.update(
                reachable=int(reachable.sum()),
                reachable_eu=float(one[reachable].mean()) if reachable.any() else np.nan,
                reachable_difference=gained.value,
                reachable_low=gained.low,
                reachable_high=gained.high,
            )
            rows.append(of_dial)
    return rows


def between(data: str, first: Read, second: Read) -> list[dict[str, float | str]]:
    """Return how much more the first reader's utility changes at α = 4 than the second's, by first stage."""
    rows = []
    for stage in STAGES:
        places = (stage, f"{READER:g}"), (stage, FIXED)
        known = [one.utility.get(place, {}) for one in (first, second) for place in places]
        questions = sorted(set(known[0]).intersection(*known))
        if len(questions) < 2:
            continue
        drawn, fixed, other_drawn, other_fixed = _vectors(questions, *known)
        row: dict[str, float | str] = {"data": data, "stage": stage, "questions": len(questions)}
        rows.append(row | difference((drawn - fixed) - (other_drawn - other_fixed)))
    return rows


def difference(values: FloatArray) -> dict[str, float | str]:
    """Return the mean of paired differences with its interval, deviation and bootstrap p-value."""
    found = difference_interval(values)
    p_value = paired_bootstrap(values, np.zeros(len(values)), num_resamples=RESAMPLES, rng=SEED).p_value
    return {
        "difference": found.value,
        "low": found.low,
        "high": found.high,
        "deviation": float(np.std(values, ddof=1)) if len(values) > 1 else np.nan,
        "differ": differing_from(0.0, values),
        "p": p_value,
    }


def _vectors(questions: Sequence[str], *known: Mapping[str, float]) -> list[FloatArray]:
    return [np.array([some[question] for question in questions]) for some in known]
