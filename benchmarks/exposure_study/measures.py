"""What each dial gives on every query, and how it differs from the deterministic ranking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from benchmarks.exposure_study.sets import Ranked, Systems
from evenmesh_core.arrays import FloatArray
from evenmesh_core.exposure import exposure_metrics
from evenmesh_core.intervals import student_interval
from evenmesh_core.plackett_luce.inclusion import inclusion_probabilities
from evenmesh_core.plackett_luce.policy import log_weights
from evenmesh_core.significance import paired_bootstrap

K: Final = 10
ALPHAS: Final = (0.0, 1.0, 2.0, 2.5, 3.0, 3.5, 4.0, 8.0)
FIXED: Final = "deterministic"
SEED: Final = 0
RESAMPLES: Final = 20_000
GROUPS: Final = ("female", "male", "neutral")


class Measured(NamedTuple):
    """Vectors [queries] of one dial of one first stage; EE-R is ``nan`` where no item is relevant."""

    disparity: FloatArray
    relevance: FloatArray
    precision: FloatArray
    groups: FloatArray
    """Exposure of the relevant passages of each of :data:`GROUPS`, shape [queries, groups]."""


def inclusion(scores: FloatArray, dial: float | str) -> FloatArray:
    """Return the probability of each item to be among the first :data:`K`; items are best first."""
    if dial == FIXED:
        return (np.arange(len(scores)) < K).astype(np.float64)
    return inclusion_probabilities(log_weights(scores, float(dial)), k=min(K, len(scores)))


def measured(queries: Sequence[Ranked], dial: float | str) -> Measured:
    """Return what a dial gives on each query."""
    rows = []
    groups = []
    for one in queries:
        if len(one.scores) == 0:
            rows.append((np.nan, np.nan, 0.0))
            groups.append([0.0] * len(GROUPS))
            continue
        exposure = inclusion(one.scores, dial)
        found = exposure_metrics(exposure=exposure, useful_mask=one.useful, k=K)
        rows.append((found.ee_d_norm, found.ee_r_norm, float(exposure @ one.useful) / K))
        named = np.array(one.groups) if one.groups else np.full(len(one.scores), "")
        groups.append([float(exposure @ (one.useful & (named == group))) for group in GROUPS])
    disparity, relevance, precision = np.array(rows).T
    return Measured(disparity, relevance, precision, np.array(groups))


def compared(data: str, systems: Systems) -> list[dict[str, float | str]]:
    """Return a row for each first stage and dial: means, and the difference from no sampling."""
    found = []
    for system, queries in systems.items():
        fixed = measured(queries, FIXED)
        for dial in (FIXED, *ALPHAS):
            mine = measured(queries, dial)
            row: dict[str, float | str] = {
                "data": data,
                "system": system,
                "dial": dial,
                "queries": int(np.sum(~np.isnan(fixed.relevance))),
                "left_out": int(np.sum(np.isnan(fixed.relevance))),
                "ee_d": float(np.nanmean(mine.disparity)),
                "ee_r": float(np.nanmean(mine.relevance)),
                "precision": float(np.mean(mine.precision[~np.isnan(fixed.relevance)])),
            }
            found.append(row | _difference(mine.relevance, fixed.relevance))
        steepness: dict[str, float | str] = {"data": data, "system": system, "dial": "8 − 1"}
        found.append(
            steepness | _difference(measured(queries, 8.0).relevance, measured(queries, 1.0).relevance)
        )
    return found


def gaps(systems: Systems) -> list[dict[str, float | str]]:
    """Return a row for each first stage and dial: exposure by wording, and the gap of two of them."""
    found = []
    for system, queries in systems.items():
        fixed = measured(queries, FIXED).groups
        for dial in (FIXED, *ALPHAS):
            mine = measured(queries, dial).groups
            signed, gap = mine[:, 0] - mine[:, 1], np.abs(mine[:, 0] - mine[:, 1])
            interval = student_interval(signed)
            found.append(
                {
                    "system": system,
                    "dial": dial,
                    "queries": len(queries),
                    **dict(zip(GROUPS, mine.mean(axis=0).tolist(), strict=True)),
                    "signed": interval.value,
                    "signed_low": interval.low,
                    "signed_high": interval.high,
                    "gap": float(gap.mean()),
                }
                | _difference(gap, np.abs(fixed[:, 0] - fixed[:, 1]))
            )
    return found


def _difference(first: FloatArray, second: FloatArray) -> dict[str, float | str]:
    interval = student_interval(first - second)
    known = (first - second)[~np.isnan(first - second)]
    p_value = paired_bootstrap(first, second, num_resamples=RESAMPLES, rng=SEED).p_value
    return {
        "difference": interval.value,
        "low": interval.low,
        "high": interval.high,
        "deviation": float(np.std(known, ddof=1)),
        "p": p_value,
    }
