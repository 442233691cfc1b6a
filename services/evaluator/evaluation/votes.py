"""Votes among the answers of an ensemble, at once or while the answers still come in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ragcore import ensemble
from ragcore.arrays import FloatArray
from raglab.similarities import Similarities


@dataclass(frozen=True, slots=True)
class VoteRules:
    """How answers vote; ``similarities`` are names of :mod:`raglab.similarities`."""

    similarities: Sequence[str]
    similarity_weights: Sequence[float]
    pooling: ensemble.Pooling
    threshold: float
    retriever_filter: float
    drop_filtered: bool


@dataclass(frozen=True, slots=True)
class VoteQuestion:
    """M answers to a question, and how they vote."""

    question: str
    answers: Sequence[str]
    retriever_weights: Sequence[float]
    rules: VoteRules


@dataclass(frozen=True, slots=True)
class VoteMeasured:
    """A vote, and how many of the others agree with its winner: ``nan`` where there is no other."""

    vote: ensemble.Vote
    agreement: float


def vote(question: VoteQuestion, similarities: Similarities) -> VoteMeasured:
    """Lets answers vote ("Ensemble of Retrievers", equations 6 and 7).

    Raises:
        InvalidInput: no retriever is left after the filter.
        MissingModel: a similarity has no model.
    """
    rules = question.rules
    judged = matrices(question.answers, question.question, rules, similarities)
    outcome = ensemble.vote(
        judged,
        rules.similarity_weights,
        question.retriever_weights,
        pooling=rules.pooling,
        threshold=rules.threshold,
        retriever_filter=rules.retriever_filter,
        drop_filtered=rules.drop_filtered,
    )
    weights = np.asarray(rules.similarity_weights, np.float64)
    combined = np.tensordot(weights / weights.sum(), judged, axes=1)
    return VoteMeasured(outcome, ensemble.agreement(combined, outcome.winner, threshold=rules.threshold))


def matrices(
    answers: Sequence[str], question: str, rules: VoteRules, similarities: Similarities
) -> FloatArray:
    """How alike answers are: [K, M, M], one matrix for each similarity.

    Raises:
        MissingModel: a similarity has no model.
    """
    chosen = [similarities.get(name) for name in rules.similarities]
    return np.stack([similarity.matrix(answers, question=question) for similarity in chosen])


class Ballot:
    """A vote while its answers come in, one after the other.

    A new answer is compared with those that are there, and with nothing else: the comparisons of one arrival
    grow with the number of answers, not with its square. Not for several threads.

    Args:
        question: the vote; its answers are the empty texts of those to come.
        similarities: how alike answers are.

    Raises:
        MissingModel: a similarity has no model.
    """

    def __init__(self, question: VoteQuestion, similarities: Similarities) -> None:
        rules, size = question.rules, len(question.answers)
        self._question = question
        self._similarities = [similarities.get(name) for name in rules.similarities]
        self._similarity = np.zeros((len(self._similarities), size, size))
        self._texts: dict[int, str] = {}
        self._arrived = np.zeros(size, np.bool_)
        self._missing = np.zeros(size, np.bool_)

    @property
    def size(self) -> int:
        """Answers expected."""
        return len(self._arrived)

    @property
    def waiting(self) -> int:
        """Answers still waited for."""
        return int(np.count_nonzero(~(self._arrived | self._missing)))

    def knows(self, index: int) -> bool:
        """Whether the answer arrived, or is known not to."""
        return bool(self._arrived[index] or self._missing[index])

    def arrive(self, index: int, text: str) -> None:
        """Takes the answer of an index that is not known yet, in [0, size).

        Raises:
            MissingModel: a similarity's model cannot be loaded.
        """
        others = list(self._texts)
        pairs = [(text, self._texts[other]) for other in others]
        if pairs:
            rows = [one.pairs(pairs, question=self._question.question) for one in self._similarities]
            self._similarity[:, index, others] = rows
            self._similarity[:, others, index] = rows
        self._texts[index] = text
        self._arrived[index] = True

    def lose(self, index: int) -> None:
        """Waits no longer for an answer that is not known yet."""
        self._missing[index] = True

    def standing(self) -> ensemble.AnytimeVote:
        """The vote so far."""
        rules = self._question.rules
        return ensemble.anytime_vote(
            self._similarity,
            rules.similarity_weights,
            self._question.retriever_weights,
            self._arrived,
            self._missing,
            pooling=rules.pooling,
            threshold=rules.threshold,
            retriever_filter=rules.retriever_filter,
            drop_filtered=rules.drop_filtered,
            low=[one.low for one in self._similarities],
            high=[one.high for one in self._similarities],
        )
