"""The similarities there are, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from evenmesh_core.errors import InvalidInput
from evenmesh_lab.similarities.bert_scores import BertScore, BertScorer
from evenmesh_lab.similarities.classifiers import PairClassifier
from evenmesh_lab.similarities.embeddings import EmbeddingCosine, Encoder
from evenmesh_lab.similarities.entailment import Entailment, QuestionEntailment, entailment_label
from evenmesh_lab.similarities.equivalence import (
    AnswerEquivalence,
    ClassifierEquivalence,
    EquivalenceModel,
    equivalence_label,
)
from evenmesh_lab.similarities.models import MissingModel, Models, Once
from evenmesh_lab.similarities.similarity import Similarity
from evenmesh_lab.similarities.strings import ContainmentEm, TokenF1

_KINDS: Mapping[str, str | None] = {
    TokenF1.name: None,
    ContainmentEm.name: None,
    EmbeddingCosine.name: "embedding",
    BertScore.name: "bert_score",
    Entailment.name: "nli",
    QuestionEntailment.name: "nli",
    AnswerEquivalence.name: "answer_equivalence",
}
"""Field of :class:`Models` by similarity; None needs no model."""


def names() -> tuple[str, ...]:
    """Return the names of all similarities; the first needs no model and is the default of votes."""
    return tuple(_KINDS)


def reads_question(name: str) -> bool:
    """Return whether the named similarity reads the question."""
    return name in (QuestionEntailment.name, AnswerEquivalence.name)


def needs_model(name: str) -> bool:
    """Return whether the named similarity needs a model."""
    return _KINDS[name] is not None


class Similarities:
    """Similarities that share their models: each model is loaded when it is first used, and once.

    Args:
        models: which models there are.
        equivalence: judges the equivalence of answers, such as a server; None: the model of ``models``.
    """

    def __init__(self, models: Models, equivalence: EquivalenceModel | None = None) -> None:
        self._models = models
        self._equivalence = equivalence
        embedding = Once(partial(Encoder, models))
        scorer = Once(partial(BertScorer, models))
        nli = Once(partial(PairClassifier, "nli", models, entailment_label))
        classifier = Once(partial(PairClassifier, "answer_equivalence", models, equivalence_label))
        self._judge = equivalence or ClassifierEquivalence(classifier)
        make: Mapping[str, Callable[[], Similarity]] = {
            TokenF1.name: TokenF1,
            ContainmentEm.name: ContainmentEm,
            EmbeddingCosine.name: partial(EmbeddingCosine, embedding),
            BertScore.name: partial(BertScore, scorer),
            Entailment.name: partial(Entailment, nli),
            QuestionEntailment.name: partial(QuestionEntailment, nli),
            AnswerEquivalence.name: partial(AnswerEquivalence, self._judge),
        }
        self._known = {name: make[name]() for name in _KINDS}

    def get(self, name: str) -> Similarity:
        """Return the named similarity; its model is not loaded yet.

        Raises:
            InvalidInput: there is none of that name.
            MissingModel: it needs a model, and none is named.
        """
        if name not in self._known:
            raise InvalidInput("name", name, ", ".join(self._known))
        kind = _KINDS[name]
        if name == AnswerEquivalence.name and self._equivalence is not None:
            return self._known[name]
        if kind not in (None, "embedding") and not getattr(self._models, str(kind)):
            needs = f"not set, and {name} needs it: name a model, or its folder"
            raise MissingModel(self._models.setting(str(kind)), needs)
        return self._known[name]

    def equivalence(self) -> EquivalenceModel:
        """Return the model of ``answer_equivalence``, to judge answers by their references.

        Raises:
            MissingModel: none is named.
        """
        self.get(AnswerEquivalence.name)
        return self._judge


def load(name: str, models: Models) -> Similarity:
    """Return the named similarity with its own model; :class:`Similarities` shares models.

    Raises:
        InvalidInput: there is none of that name.
        MissingModel: it needs a model, and none is named.
    """
    return Similarities(models).get(name)
