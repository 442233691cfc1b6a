"""Judge answers by their references with a model of answer equivalence."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from evenmesh_core.errors import InvalidInput
from evenmesh_core.text_metrics import exact_match
from evenmesh_lab.similarities.equivalence import Compared, EquivalenceModel

NAME: Final = "answer_equivalence"
"""Its name among judges."""
THRESHOLD: Final = 0.5
"""Probability from which (inclusive) an answer is right."""
MOST_KEPT: Final = 500_000
"""Most judgements that are kept; the oldest are asked for again."""


class EquivalenceJudge:
    """An answer is right, 1.0, if the model finds it equivalent to a reference; else it is wrong, 0.0.

    An answer that equals a reference after normalisation is right without asking. Each other pair is judged
    once.

    Args:
        model: gives probabilities.
        threshold: probability from which (inclusive) an answer is right, (0, 1].

    Attributes:
        asked: number of pairs that the model judged so far.

    Source: Bulian et al. 2022, §3, with its threshold.
    """

    name = NAME

    def __init__(self, model: EquivalenceModel, *, threshold: float = THRESHOLD) -> None:
        if not 0 < threshold <= 1:
            raise InvalidInput("threshold", threshold, "above 0, at most 1")
        self._model = model
        self._threshold = threshold
        self._kept: OrderedDict[Compared, float] = OrderedDict()
        self.asked = 0

    def scores(self, question: str, references: Sequence[str], answers: Sequence[str]) -> list[float]:
        """Return 1.0 or 0.0 for each answer.

        Args:
            question: what was asked; not blank.
            references: right answers, one or more.
            answers: to be judged.

        Raises:
            InvalidInput: a blank question, or no references.
            MissingModel: the model cannot be had.
        """
        if not question.strip():
            raise InvalidInput("question", question, f"the question that was answered: {NAME} reads it")
        if not references:
            raise InvalidInput("references", references, "at least one")
        doubtful = [one for one in dict.fromkeys(answers) if one.strip() and not exact_match(one, references)]
        pairs = [Compared(question, reference, one) for one in doubtful for reference in references]
        known = {one: self._kept[one] for one in pairs if one in self._kept}
        wanted = [one for one in dict.fromkeys(pairs) if one not in known]
        if wanted:
            found = self._model.probabilities(wanted)
            self.asked += len(wanted)
            for one, value in zip(wanted, found.tolist(), strict=True):
                known[one] = self._kept[one] = value
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return [self._score(question, references, one, known) for one in answers]

    def _score(
        self, question: str, references: Sequence[str], answer: str, known: dict[Compared, float]
    ) -> float:
        if not answer.strip():
            return 0.0
        if exact_match(answer, references):
            return 1.0
        best = max(known[Compared(question, reference, answer)] for reference in references)
        return float(best >= self._threshold)
