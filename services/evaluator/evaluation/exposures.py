"""Exposure of items and of groups of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ragcore.arrays import FloatArray, IntArray
from ragcore.exposure import (
    BrowsingModel,
    ExposureMetrics,
    GroupExposure,
    exposure_metrics,
    group_exposure,
    system_exposure,
    top_k,
)


@dataclass(frozen=True, slots=True)
class ExposureQuestion:
    """Rankings [N, L] of n items, or their exposure [n], and usefulness [n]; attention ends after k.

    ``probabilities`` [N] where the rankings are all there are, ``groups`` [n] where groups are wanted.
    """

    rankings: IntArray | None
    exposure: FloatArray | None
    usefulness: FloatArray
    k: int
    browsing: BrowsingModel | None
    probabilities: Sequence[float] | None = None
    groups: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class ExposureMeasured:
    """Exposure of the items, and of their groups where there are such."""

    items: ExposureMetrics
    groups: GroupExposure | None


def exposure(question: ExposureQuestion) -> ExposureMeasured:
    """Expected exposure (Kim and Diaz, "Towards Fair RAG", section 3.3.1).

    Raises:
        InvalidInput: arguments that do not fit each other.
    """
    rankings, given = question.rankings, question.exposure
    if rankings is not None and question.probabilities is not None:
        browsing = top_k(question.k) if question.browsing is None else question.browsing
        shown, n = rankings[:, : question.k], len(question.usefulness)
        given = system_exposure(shown, n, browsing, probabilities=question.probabilities)
        rankings = None
    items = exposure_metrics(
        rankings, question.usefulness, k=question.k, browsing=question.browsing, exposure=given
    )
    if question.groups is None:
        return ExposureMeasured(items, None)
    return ExposureMeasured(items, group_exposure(items.exposure, items.target, question.groups))
