"""What the evaluator measures for callers that bring their own rankings, answers or conversations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ragcore.arrays import FloatArray, IntArray
from ragcore.exposure import BrowsingModel, ExposureMetrics, exposure_metrics
from ragcore.utility import expected_utility
from services.evaluator import utility
from services.evaluator.domain import UtilityMetric


@dataclass(frozen=True, slots=True)
class ExposureQuestion:
    """Rankings [N, L] of n items, or their exposure [n], against usefulness grades [n]; attention ends
    after k.
    """

    rankings: IntArray | None
    exposure: FloatArray | None
    usefulness: FloatArray
    k: int
    browsing: BrowsingModel | None


@dataclass(frozen=True, slots=True)
class UtilityQuestion:
    """Answers of N samples against references; ``weights`` [N] where samples are not alike, ``u_max`` if
    known.
    """

    answers: Sequence[str]
    references: Sequence[str]
    metric: UtilityMetric
    weights: Sequence[float] | None
    u_max: float | None


@dataclass(frozen=True, slots=True)
class UtilityMeasured:
    """Utility per answer, its expectation, and that over the largest known utility where one is given."""

    utilities: FloatArray
    expected: float
    normalized: float | None


def exposure(question: ExposureQuestion) -> ExposureMetrics:
    """Expected exposure (Kim and Diaz, "Towards Fair RAG", section 3.3.1).

    Raises:
        InvalidInput: arguments that do not fit each other.
    """
    return exposure_metrics(
        question.rankings,
        question.usefulness,
        k=question.k,
        browsing=question.browsing,
        exposure=question.exposure,
    )


def utilities(question: UtilityQuestion) -> UtilityMeasured:
    """Utility and expected utility ("Towards Fair RAG", equations 7 and 25).

    Raises:
        InvalidInput: arguments that do not fit each other.
    """
    values = utility.of_answers(question.answers, question.references, question.metric)
    expected = expected_utility(values, question.weights)
    # Not clipped at 1: a caller's u_max may turn out not to be the largest.
    normalized = None if question.u_max is None else expected / question.u_max
    return UtilityMeasured(values, expected, normalized)
