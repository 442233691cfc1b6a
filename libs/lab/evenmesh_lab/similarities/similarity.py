"""The interface of similarities of answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from evenmesh_core.arrays import FloatArray, IntArray
from evenmesh_core.errors import InvalidInput

Pair = tuple[str, str]
"""Two answers; their order means nothing."""
Check = Callable[[], None]
"""Called before each step of a comparison; what it raises ends it."""


def unchecked() -> None:
    """Let a comparison continue."""


class Similarity(ABC):
    """Measures the similarity of answers to one question; judges each two different texts once.

    Symmetric. Equal texts have similarity ``high`` by definition and are not judged. Pairs are judged in
    alphabetical order, so that the order of a request does not matter. Safe to use from several threads.

    Attributes:
        name: its name.
        low: smallest value it takes.
        high: largest value it takes.
        reads_question: whether there must be a question.
    """

    name: str
    low: float = 0.0
    high: float = 1.0
    reads_question: bool = False

    def matrix(self, answers: Sequence[str], *, question: str = "", check: Check = unchecked) -> FloatArray:
        """Compare each answer with each: matrix [M, M] in [low, high], the input of
        :func:`evenmesh_core.ensemble.vote`; ``check`` is called before each step.

        Raises:
            InvalidInput: no answers, or no question where the similarity reads it.
            MissingModel: its model cannot be had.
        """
        if len(answers) == 0:
            raise InvalidInput("answers", answers, "at least one answer")
        self._check_question(question)
        texts, chosen = _distinct(answers)
        rows, columns = np.triu_indices(len(texts), k=1)
        square = np.full((len(texts), len(texts)), self.high)
        if len(rows):
            values = np.clip(self.judge(texts, rows, columns, question, check), self.low, self.high)
            square[rows, columns] = values
            square[columns, rows] = values
        return square[np.ix_(chosen, chosen)]

    def pairs(self, pairs: Sequence[Pair], *, question: str = "", check: Check = unchecked) -> FloatArray:
        """Compare pairs of answers: vector [P] in [low, high]; ``check`` is called before each step.

        Raises:
            InvalidInput: no question where the similarity reads it.
            MissingModel: its model cannot be had.
        """
        self._check_question(question)
        texts, places = _distinct([text for pair in pairs for text in pair])
        ordered = np.sort(places.reshape(-1, 2), axis=1)
        apart = np.flatnonzero(ordered[:, 0] != ordered[:, 1])
        values = np.full(len(pairs), self.high)
        if len(apart):
            judged, which = np.unique(ordered[apart], axis=0, return_inverse=True)
            found = self.judge(texts, judged[:, 0], judged[:, 1], question, check)
            values[apart] = np.clip(found, self.low, self.high)[which.ravel()]
        return values

    @abstractmethod
    def judge(
        self, texts: Sequence[str], left: IntArray, right: IntArray, question: str, check: Check
    ) -> FloatArray:
        """Compare P > 0 distinct pairs of different texts: vector [P].

        Args:
            texts: the texts, each once, in alphabetical order.
            left: vector [P] of places in ``texts``.
            right: vector [P] of places in ``texts``, each above its ``left``.
            question: the question; may be empty unless it is read.
            check: called before each step.

        Raises:
            MissingModel: its model cannot be had.
        """

    def _check_question(self, question: str) -> None:
        if self.reads_question and not question.strip():
            raise InvalidInput("question", question, f"the question that was answered: {self.name} reads it")


def _distinct(texts: Sequence[str]) -> tuple[list[str], IntArray]:
    """Return the different texts in alphabetical order, and the place of each text among them."""
    ordered = sorted(set(texts))
    place = {text: at for at, text in enumerate(ordered)}
    return ordered, np.fromiter((place[text] for text in texts), np.int64, count=len(texts))
