"""Reports of aggregates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from evenmesh_evaluator.domain import (
    CONVERSATION,
    MEASURED,
    NORMALIZED,
    ExposureShare,
    RunReport,
    Scope,
    Stage,
    Window,
)
from evenmesh_evaluator.reports.aggregate import Aggregate
from evenmesh_evaluator.reports.moments import KeyedMoments, Moments


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """The aggregate of a scope in a window, and what a report needs beside it.

    ``peaks`` holds the current u_max for every key of the aggregate's utilities, ``conversations`` the
    moments of each name of :data:`evenmesh_evaluator.domain.CONVERSATION`, over the last state of each.
    """

    aggregate: Aggregate
    peaks: Mapping[str, float]
    conversations: Mapping[str, Moments]


def report(scope: Scope, window: Window, totals: Totals, *, max_names: int) -> RunReport:
    """Return the report of a scope with at most ``max_names`` providers and passages, most exposed first.

    Normalised expected utility is relative to u_max, the largest utility of any answer of the generator to
    the query in any run, so it may fall when a better answer is observed; it is undefined where u_max is 0
    (Kim & Diaz 2025, arXiv:2409.11598, equations 25 and 26).
    """
    whole = totals.aggregate
    none = Moments(undefined=whole.num_observations)
    estimates = {
        name: whole.quantities.get(name, none).estimate(*limits) for name, limits in MEASURED.items()
    }
    normalized = whole.utilities.moments(totals.peaks)
    without = whole.quantities.get("expected_utility", none).undefined
    estimates[NORMALIZED] = normalized.merged(Moments(undefined=without)).estimate(0.0, 1.0)
    for name, limits in CONVERSATION.items():
        estimates[name] = totals.conversations.get(name, Moments()).estimate(*limits)
    return RunReport(
        scope=scope,
        window=window,
        num_observations=whole.num_observations,
        num_rankings=whole.num_rankings,
        num_unanswered=whole.num_unanswered,
        started_at_us=whole.started_at_us,
        updated_at_us=whole.updated_at_us,
        estimates=estimates,
        stages={stage: whole.stages[stage].estimate(low=0.0) for stage in Stage if stage in whole.stages},
        providers=_shares(whole.providers, whole.num_exposed, max_names),
        passages=_shares(whole.passages, whole.num_exposed, max_names, highest=1.0),
        degradations=[(*key, count) for key, count in sorted(whole.degradations.items())],
    )


def _shares(
    exposures: KeyedMoments, num_exposed: int, limit: int, *, highest: float = np.inf
) -> list[ExposureShare]:
    counts, means, m2, targets, labelled = exposures.columns
    sums = counts * means
    total = float(sums.sum())
    keys = exposures.keys
    # Most exposed first, ties by name; partitioned first, as there may be a million passages.
    at = np.arange(len(keys))
    if len(at) > limit + 1:  # one more: the unknown provider is dropped
        at = np.flatnonzero(sums >= np.partition(sums, -(limit + 1))[-(limit + 1)])
    order = sorted((i for i in at.tolist() if keys[i]), key=lambda i: (-sums[i], keys[i]))
    return [
        ExposureShare(
            name=keys[i],
            exposure=float(sums[i]),
            share=float(sums[i]) / total if total else 0.0,
            target=float(targets[i]) if labelled[i] else None,
            per_observation=Moments(int(counts[i]), 0, float(means[i]), float(m2[i]))
            .merged(Moments(count=num_exposed - int(counts[i])))
            .estimate(0.0, highest),
        )
        for i in order[:limit]
    ]
