"""Utility of answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ragcore.arrays import FloatArray
from ragcore.utility import expected_utility, utility_gains
from services.evaluator.domain import UtilityMetric
from services.evaluator.utility import of_answers


@dataclass(frozen=True, slots=True)
class UtilityQuestion:
    """Answers of N samples against references; ``weights`` [N], ``u_max`` and the answer without any passage
    where they are known."""

    answers: Sequence[str]
    references: Sequence[str]
    metric: UtilityMetric
    weights: Sequence[float] | None
    u_max: float | None
    baseline: str | None = None


@dataclass(frozen=True, slots=True)
class UtilityMeasured:
    """Utility per answer, its expectation, that over the largest known utility, and the gains over the
    baseline; the last two where there is something to compare with."""

    utilities: FloatArray
    expected: float
    normalized: float | None
    gains: FloatArray | None


def utility(question: UtilityQuestion) -> UtilityMeasured:
    """Utility and expected utility ("Towards Fair RAG", equations 7 and 25; algorithm 1 for gains).

    Raises:
        InvalidInput: arguments that do not fit each other.
    """
    answers = list(question.answers) + ([] if question.baseline is None else [question.baseline])
    values = of_answers(answers, question.references, question.metric)
    augmented = values[: len(question.answers)]
    expected = expected_utility(augmented, question.weights)
    # Not clipped at 1: a caller's u_max may turn out not to be the largest.
    normalized = None if question.u_max is None else expected / question.u_max
    gains = None if question.baseline is None else utility_gains(augmented, float(values[-1]))
    return UtilityMeasured(augmented, expected, normalized, gains)
