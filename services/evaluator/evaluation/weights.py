"""The weights of a vote that answer training questions best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ragcore import ensemble
from ragcore.arrays import FloatArray
from raglab.similarities import Similarities
from services.evaluator.evaluation.votes import VoteRules, matrices


@dataclass(frozen=True, slots=True)
class SearchQuestion:
    """Q training questions with the answers of M retrievers and how correct they are, [Q, M] in [0, 1]."""

    questions: Sequence[str]
    answers: Sequence[Sequence[str]]
    correctness: FloatArray
    rules: VoteRules
    max_weight: float

    @property
    def cells(self) -> int:
        """Similarities that are held at a time: Q · K · M²."""
        questions, retrievers = self.correctness.shape
        return int(questions * len(self.rules.similarities) * retrievers**2)


def search_weights(
    question: SearchQuestion, similarities: Similarities, check: Callable[[], None]
) -> ensemble.WeightSearch:
    """Searches by Nelder–Mead ("Ensemble of Retrievers", sections 4.2 and 4.3). Deterministic.

    Args:
        question: what to train on.
        similarities: how alike answers are.
        check: called again and again; what it raises ends the search.

    Raises:
        InvalidInput: a filter that is not below half of the largest weight.
        MissingModel: a similarity has no model.
    """
    questions, retrievers = question.correctness.shape
    judged = np.empty((questions, len(question.rules.similarities), retrievers, retrievers))
    for at, (text, answers) in enumerate(zip(question.questions, question.answers, strict=True)):
        check()
        judged[at] = matrices(answers, text, question.rules, similarities)
    rules = question.rules
    return ensemble.search_weights(
        judged,
        question.correctness,
        pooling=rules.pooling,
        threshold=rules.threshold,
        retriever_filter=rules.retriever_filter,
        drop_filtered=rules.drop_filtered,
        max_weight=question.max_weight,
        check=check,
    )
