"""What the evaluator measures for callers that bring their own rankings, answers or conversations."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from meshkit.errors import InvalidField
from ragcore import ensemble, group_fairness
from ragcore.arrays import FloatArray, IntArray
from ragcore.errors import InvalidInput
from ragcore.exposure import BrowsingModel, ExposureMetrics, exposure_metrics
from ragcore.text_metrics import token_f1
from ragcore.utility import expected_utility
from services.evaluator import utility
from services.evaluator.domain import UtilityMetric

SIMILARITIES: Final[Mapping[str, Callable[[str, str], float]]] = MappingProxyType(
    {"token_f1": token_f1, "containment_em": ensemble.containment_em}
)
"""Similarities of two answers that need no model, by name; the first is the default."""


@dataclass(frozen=True, slots=True)
class ExposureQuestion:
    """Rankings [N, L] of n items, or their exposure [n], and usefulness [n]; attention ends after k."""

    rankings: IntArray | None
    exposure: FloatArray | None
    usefulness: FloatArray
    k: int
    browsing: BrowsingModel | None


@dataclass(frozen=True, slots=True)
class UtilityQuestion:
    """Answers of N samples against references; ``weights`` [N] and ``u_max`` where they are known."""

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


@dataclass(frozen=True, slots=True)
class VoteQuestion:
    """M answers, and how they vote; ``similarities`` name entries of :data:`SIMILARITIES`."""

    answers: Sequence[str]
    retriever_weights: Sequence[float]
    similarities: Sequence[str]
    similarity_weights: Sequence[float]
    pooling: ensemble.Pooling
    threshold: float
    retriever_filter: float


@dataclass(frozen=True, slots=True)
class ConversationQuestion:
    """Nuggets of system turns, and targets by attribute; ``patience`` in words."""

    turns: Sequence[Sequence[group_fairness.Nugget]]
    attributes: Mapping[str, group_fairness.Attribute]
    patience: float
    alpha: float


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


def vote(question: VoteQuestion) -> ensemble.Vote:
    """Lets answers vote ("Ensemble of Retrievers", equations 6 and 7).

    Raises:
        InvalidInput: no retriever is left after the filter.
    """
    similarity = np.stack(
        [ensemble.similarity_matrix(question.answers, SIMILARITIES[name]) for name in question.similarities]
    )
    return ensemble.vote(
        similarity,
        question.similarity_weights,
        question.retriever_weights,
        pooling=question.pooling,
        threshold=question.threshold,
        retriever_filter=question.retriever_filter,
    )


def conversation(question: ConversationQuestion) -> group_fairness.ConversationFairness:
    """Relevance and group fairness of a conversation (GFRC, equations 3 to 10).

    Raises:
        InvalidField: arguments that do not fit each other, under the request's name for them.
    """
    try:
        return group_fairness.conversation(
            question.turns, question.attributes, patience=question.patience, alpha=question.alpha
        )
    except InvalidInput as error:
        path = re.sub(r"^(?:len|sum)\((.*)\)$", r"\1", error.argument)
        path = re.sub(r"^turns\[(\d+)\]\[(\d+)\]", r"turns[\1].nuggets[\2]", path)
        raise InvalidField(path, str(error)) from error
