"""Utility of answers against references, by metric."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

import numpy as np

from ragcore import text_metrics
from ragcore.arrays import FloatArray
from services.evaluator.domain import UtilityMetric


class _Score(Protocol):
    def __call__(self, prediction: str, references: str | Sequence[str]) -> float: ...


_SCORES: Final[dict[UtilityMetric, _Score]] = {
    UtilityMetric.EXACT_MATCH: text_metrics.exact_match,
    UtilityMetric.TOKEN_F1: text_metrics.token_f1,
    UtilityMetric.ROUGE1: partial(text_metrics.rouge, variant="rouge1"),
    UtilityMetric.ROUGE2: partial(text_metrics.rouge, variant="rouge2"),
    UtilityMetric.ROUGE_L: partial(text_metrics.rouge, variant="rougeL"),
    UtilityMetric.ACCURACY: text_metrics.accuracy,
}


def of_answers(answers: Sequence[str], references: Sequence[str], metric: UtilityMetric) -> FloatArray:
    """Utility of each answer in [0, 1] against the best matching of at least one reference.

    Equal answers are scored once: sampled rankings often lead to the same words.
    """
    score = _SCORES[metric]
    scores = {answer: score(answer, references) for answer in dict.fromkeys(answers)}
    return np.array([scores[answer] for answer in answers], dtype=np.float64)
