"""What a similarity of answers is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np

from ragcore.arrays import FloatArray
from ragcore.errors import InvalidInput

Pair = tuple[str, str]
"""Two answers; their order means nothing."""


class Similarity(Protocol):
    """Says how alike answers to one question are.

    Symmetric, and an answer is as alike as can be to itself: ``high``. Safe to use from several threads.
    """

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def low(self) -> float:
        """Smallest value it takes."""
        ...

    @property
    def high(self) -> float:
        """Largest value it takes."""
        ...

    def matrix(self, answers: Sequence[str], *, question: str = "") -> FloatArray:
        """Compares each answer with each: matrix [M, M] in [low, high], as :func:`ragcore.ensemble.vote`
        takes it.

        Raises:
            InvalidInput: no answers, or no question where the similarity reads it.
            MissingModel: its model cannot be had.
        """
        ...

    def pairs(self, pairs: Sequence[Pair], *, question: str = "") -> FloatArray:
        """Compares pairs of answers: vector [P] in [low, high].

        Raises:
            InvalidInput: no question where the similarity reads it.
            MissingModel: its model cannot be had.
        """
        ...


class PairwiseSimilarity(ABC):
    """A similarity that judges pairs: each two different texts once, however often they come.

    Equal texts are alike by definition and are not judged. Pairs are judged in alphabetical order, so that
    what comes first in a request has no say.
    """

    name: ClassVar[str]
    low: ClassVar[float] = 0.0
    high: ClassVar[float] = 1.0
    reads_question: ClassVar[bool] = False
    """Whether there must be a question."""

    def matrix(self, answers: Sequence[str], *, question: str = "") -> FloatArray:
        """As :meth:`Similarity.matrix`."""
        if len(answers) == 0:
            raise InvalidInput("answers", answers, "at least one answer")
        place = {answer: at for at, answer in enumerate(dict.fromkeys(answers))}
        distinct = list(place)
        rows, columns = np.triu_indices(len(distinct), k=1)
        values = self.pairs(
            [(distinct[m], distinct[n]) for m, n in zip(rows.tolist(), columns.tolist(), strict=True)],
            question=question,
        )
        square = np.full((len(distinct), len(distinct)), self.high)
        square[rows, columns] = values
        square[columns, rows] = values
        chosen = [place[answer] for answer in answers]
        return square[np.ix_(chosen, chosen)]

    def pairs(self, pairs: Sequence[Pair], *, question: str = "") -> FloatArray:
        """As :meth:`Similarity.pairs`."""
        if self.reads_question and not question.strip():
            raise InvalidInput("question", question, f"the question that was answered: {self.name} reads it")
        ordered = [(left, right) if left <= right else (right, left) for left, right in pairs]
        different = {pair: at for at, pair in enumerate(dict.fromkeys(p for p in ordered if p[0] != p[1]))}
        values = np.full(len(pairs), self.high)
        if different:
            judged = np.clip(self.judge(list(different), question), self.low, self.high)
            apart = [at for at, pair in enumerate(ordered) if pair in different]
            values[apart] = judged[[different[ordered[at]] for at in apart]]
        return values

    @abstractmethod
    def judge(self, pairs: Sequence[Pair], question: str) -> FloatArray:
        """Compares P > 0 pairs of different texts, no pair twice: vector [P].

        Raises:
            MissingModel: its model cannot be had.
        """
