"""Whether answers entail each other, by a model of natural language inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ragcore.arrays import FloatArray
from raglab.similarities.classifiers import PairClassifier
from raglab.similarities.models import Once
from raglab.similarities.similarity import Pair, PairwiseSimilarity


def entailment_label(labels: Mapping[int, str]) -> int:
    """The index of the label "entailment", in any case.

    Raises:
        ValueError: there is none, or more than one.
    """
    found = [at for at, name in labels.items() if name.casefold() in ("entailment", "entail")]
    if len(found) != 1:
        raise ValueError(
            f"of its labels {', '.join(labels.values())} one must be 'entailment' (id2label in config.json)"
        )
    return found[0]


class Entailment(PairwiseSimilarity):
    """Mean of the probabilities that one answer entails the other, and the other the one, in [0, 1].

    The paper's similarity is "the entailment score of a Natural Language Inference model" and says nothing of
    its direction. It is symmetrised here, because equation 6 takes a *semantic similarity* of two responses,
    as EM and BERTScore beside it are: one direction alone would favour the longest answers, which entail the
    rest, or the vaguest, which all the others entail. The mean, not the minimum, keeps "Paris" alike to "the
    city of Paris in France", of which only one direction holds. And an answer is not asked whether it entails
    itself: equal answers are alike, 1.

    Args:
        classifier: the model, loaded when it is first wanted.

    Source: ensemble-of-retrievers §4.1, equation 6, and §4.3.
    """

    name = "nli"

    def __init__(self, classifier: Once[PairClassifier]) -> None:
        self._classifier = classifier

    def judge(self, pairs: Sequence[Pair], question: str) -> FloatArray:
        """Both directions of every pair."""
        return both_ways(
            self._classifier.get(), [(self.read(a, question), self.read(b, question)) for a, b in pairs]
        )

    def read(self, answer: str, question: str) -> str:
        """An answer as the model reads it."""
        return answer


class QuestionEntailment(Entailment):
    """As :class:`Entailment`, with the question and a space before either answer: "in 1969" alone says little
    that could be entailed."""

    name = "nli_question"
    reads_question = True

    def read(self, answer: str, question: str) -> str:
        """The question, then the answer."""
        return f"{question.strip()} {answer}"


def both_ways(classifier: PairClassifier, pairs: Sequence[tuple[str, str]]) -> FloatArray:
    """Mean probability of each pair and its reverse: vector [P]."""
    probabilities = classifier.probabilities([*pairs, *((right, left) for left, right in pairs)])
    mean: FloatArray = (probabilities[: len(pairs)] + probabilities[len(pairs) :]) / 2
    return mean
