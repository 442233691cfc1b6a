"""Whether answers entail each other, by a model of natural language inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from evenmesh_core.arrays import FloatArray, IntArray
from evenmesh_lab.similarities.classifiers import PairClassifier
from evenmesh_lab.similarities.models import Once
from evenmesh_lab.similarities.similarity import Check, Similarity


def entailment_label(labels: Mapping[int, str]) -> int:
    """Return the index of the label "entailment", in any case.

    Raises:
        ValueError: there is none, or more than one.
    """
    found = [at for at, name in labels.items() if name.casefold() in ("entailment", "entail")]
    if len(found) != 1:
        raise ValueError(
            f"of its labels {', '.join(labels.values())} one must be 'entailment' (id2label in config.json)"
        )
    return found[0]


class Entailment(Similarity):
    """Mean of the probabilities that one answer entails the other, and the other the one, in [0, 1].

    The paper's similarity is "the entailment score of a Natural Language Inference model" and says nothing of
    its direction. It is symmetrised here, because equation 6 takes a *semantic similarity* of two responses,
    as EM and BERTScore beside it are: one direction alone would favour the longest answers, which entail the
    rest, or the vaguest, which all the others entail. The mean, not the minimum, keeps "Paris" alike to "the
    city of Paris in France", of which only one direction holds. And an answer is not asked whether it entails
    itself: equal answers are alike, 1.

    Args:
        classifier: the model, loaded when it is first wanted.

    Source: Li et al. 2024, §4.1, equation 6, and §4.3.
    """

    name = "nli"

    def __init__(self, classifier: Once[PairClassifier]) -> None:
        self._classifier = classifier

    def judge(
        self, texts: Sequence[str], left: IntArray, right: IntArray, question: str, check: Check
    ) -> FloatArray:
        """Judge both directions of every pair: the mean of their probabilities."""
        read = [self.read(text, question) for text in texts]
        forward = [(read[one], read[other]) for one, other in zip(left, right, strict=True)]
        backward = [(other, one) for one, other in forward]
        found = self._classifier.get().probabilities(forward + backward, check)
        return np.asarray(found.reshape(2, -1).mean(axis=0), np.float64)

    def read(self, answer: str, question: str) -> str:
        """Return the model's input for an answer."""
        return answer


class QuestionEntailment(Entailment):
    """As :class:`Entailment`, with the question and a space before either answer: "in 1969" alone says little
    that could be entailed."""

    name = "nli_question"
    reads_question = True

    def read(self, answer: str, question: str) -> str:
        """Return the question, then the answer."""
        return f"{question.strip()} {answer}"
