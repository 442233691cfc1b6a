"""Whether two answers to a question are equivalent, by a model that is trained or asked to say just that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from evenmesh_core.arrays import FloatArray, IntArray
from evenmesh_lab.similarities.classifiers import PairClassifier
from evenmesh_lab.similarities.models import Once
from evenmesh_lab.similarities.similarity import Check, Similarity, unchecked


def equivalence_label(labels: Mapping[int, str]) -> int:
    """Return the index of the label "equivalent": the second of two, or the only one.

    Raises:
        ValueError: it has more labels.
    """
    if len(labels) > 2:
        raise ValueError(f"it has {len(labels)} labels; an answer-equivalence model has one or two")
    return len(labels) - 1


@dataclass(frozen=True, slots=True)
class Compared:
    """A candidate answer to a question, and the reference that it is compared with."""

    question: str
    reference: str
    candidate: str


class EquivalenceModel(Protocol):
    """Says how probably candidates are as good as their references. Safe to use from several threads."""

    def probabilities(self, compared: Sequence[Compared], check: Check = unchecked) -> FloatArray:
        """Return the probability of each, a vector [P] in [0, 1]; ``check`` is called before each step.

        Raises:
            MissingModel: the model cannot be had.
        """


class ClassifierEquivalence:
    """A sequence classifier that reads ``[CLS] candidate [SEP] reference [SEP] question [SEP]``, as BEM does.

    Args:
        classifier: the model, loaded when it is first wanted.

    Source: Bulian et al. 2022, "Tomayto, Tomahto".
    """

    def __init__(self, classifier: Once[PairClassifier]) -> None:
        self._classifier = classifier

    def probabilities(self, compared: Sequence[Compared], check: Check = unchecked) -> FloatArray:
        """Return P(equivalent) of each; see :class:`EquivalenceModel`."""
        classifier = self._classifier.get()
        pairs = [
            (one.candidate, f"{one.reference} {classifier.separator} {one.question}") for one in compared
        ]
        return classifier.probabilities(pairs, check)


class AnswerEquivalence(Similarity):
    """Probability that an answer is as good as the other, the mean over which of the two is the reference, in
    [0, 1].

    Args:
        model: judges each direction.

    Source: Bulian et al. 2022, "Tomayto, Tomahto"; Li et al. 2024, §2.1 for its use.
    """

    name = "answer_equivalence"
    reads_question = True

    def __init__(self, model: EquivalenceModel) -> None:
        self._model = model

    def judge(
        self, texts: Sequence[str], left: IntArray, right: IntArray, question: str, check: Check
    ) -> FloatArray:
        """Judge both directions of every pair."""
        pairs = [(texts[one], texts[other]) for one, other in zip(left, right, strict=True)]
        compared = [Compared(question, other, one) for one, other in pairs]
        compared += [Compared(question, one, other) for one, other in pairs]
        probabilities = self._model.probabilities(compared, check)
        return np.asarray(probabilities.reshape(2, -1).mean(axis=0), np.float64)
