"""Whether two answers to a question are equivalent, by a classifier trained on just that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from evenmesh_core.arrays import FloatArray, IntArray
from evenmesh_lab.similarities.classifiers import PairClassifier
from evenmesh_lab.similarities.models import Once
from evenmesh_lab.similarities.similarity import Check, Similarity


def equivalence_label(labels: Mapping[int, str]) -> int:
    """Return the index of the label "equivalent": the second of two, or the only one.

    Raises:
        ValueError: it has more labels.
    """
    if len(labels) > 2:
        raise ValueError(f"it has {len(labels)} labels; an answer-equivalence model has one or two")
    return len(labels) - 1


class AnswerEquivalence(Similarity):
    """Probability that an answer is as good as the other, the mean over which of the two is the reference, in
    [0, 1].

    The model reads ``[CLS] candidate [SEP] reference [SEP] question [SEP]``, as BEM was trained.

    Args:
        classifier: the model, loaded when it is first wanted.

    Source: Bulian et al. 2022, "Tomayto, Tomahto"; Li et al. 2024, §2.1 for its use.
    """

    name = "answer_equivalence"
    reads_question = True

    def __init__(self, classifier: Once[PairClassifier]) -> None:
        self._classifier = classifier

    def judge(
        self, texts: Sequence[str], left: IntArray, right: IntArray, question: str, check: Check
    ) -> FloatArray:
        """Judge both directions of every pair."""
        classifier = self._classifier.get()

        def read(candidate: str, reference: str) -> tuple[str, str]:
            return candidate, f"{reference} {classifier.separator} {question}"

        pairs = [(texts[one], texts[other]) for one, other in zip(left, right, strict=True)]
        triples = [read(one, other) for one, other in pairs] + [read(other, one) for one, other in pairs]
        probabilities = classifier.probabilities(triples, check)
        return np.asarray(probabilities.reshape(2, -1).mean(axis=0), np.float64)
