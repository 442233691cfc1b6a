"""Whether two answers to a question are equivalent, by a classifier trained on just that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ragcore.arrays import FloatArray
from raglab.similarities.classifiers import PairClassifier
from raglab.similarities.models import Once
from raglab.similarities.similarity import Pair, PairwiseSimilarity


def equivalence_label(labels: Mapping[int, str]) -> int:
    """The index of the label that means "equivalent": the second of two; of one, the only.

    Raises:
        ValueError: it has more labels.
    """
    if len(labels) > 2:
        raise ValueError(f"it has {len(labels)} labels; an answer-equivalence model has one or two")
    return len(labels) - 1


class AnswerEquivalence(PairwiseSimilarity):
    """Probability that an answer is as good as the other, the mean over which of the two is the reference, in
    [0, 1].

    The model reads ``[CLS] candidate [SEP] reference [SEP] question [SEP]``, as BEM was trained.

    Args:
        classifier: the model, loaded when it is first wanted.

    Source: Bulian et al. 2022, "Tomayto, Tomahto"; ensemble-of-retrievers §2.1 for its use.
    """

    name = "answer_equivalence"
    reads_question = True

    def __init__(self, classifier: Once[PairClassifier]) -> None:
        self._classifier = classifier

    def judge(self, pairs: Sequence[Pair], question: str) -> FloatArray:
        """Both directions of every pair."""
        classifier = self._classifier.get()

        def read(candidate: str, reference: str) -> tuple[str, str]:
            return candidate, f"{reference} {classifier.separator} {question}"

        triples = [read(left, right) for left, right in pairs] + [read(right, left) for left, right in pairs]
        probabilities = classifier.probabilities(triples)
        return np.asarray(probabilities.reshape(2, -1).mean(axis=0), np.float64)
