"""Votes among the answers of an ensemble, at once or while the answers arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypedDict

import numpy as np

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire import checks
from evenmesh.wire.choices import Choices
from evenmesh.wire.errors import InvalidField
from evenmesh_core import ensemble
from evenmesh_core.arrays import FloatArray
from evenmesh_core.ensemble.votes import POOLINGS
from evenmesh_evaluator import cost, fields
from evenmesh_evaluator.measures.bootstraps import defined
from evenmesh_kit.compute.steps import Check, unchecked
from evenmesh_lab import similarities as catalogue
from evenmesh_lab.similarities import Similarities

MAX_VOTES: Final = 1000
"""Most answers of one vote."""
MAX_EXPECTED: Final = 100
"""Most answers of a vote session."""
MAX_SESSION_CHARACTERS: Final = 2**20
"""Most characters of all answers of a vote session, which holds them until it ends."""

_POOLINGS: Final = Choices[ensemble.Pooling](pb.VoteRequest.Pooling.DESCRIPTOR, POOLINGS, "mean")


class PollOptions(TypedDict):
    """The options that every kind of vote in :mod:`evenmesh_core.ensemble` takes."""

    pooling: ensemble.Pooling
    threshold: float
    retriever_filter: float
    drop_filtered: bool


@dataclass(frozen=True, slots=True)
class VoteRules:
    """How answers vote; ``similarities`` are names of :mod:`evenmesh_lab.similarities`."""

    similarities: Sequence[str]
    similarity_weights: Sequence[float]
    options: PollOptions

    @property
    def reads_question(self) -> bool:
        """Whether a similarity reads the question."""
        return any(catalogue.reads_question(name) for name in self.similarities)

    def matrices(
        self, answers: Sequence[str], question: str, similarities: Similarities, check: Check
    ) -> FloatArray:
        """Return the similarities of M answers as an array [K, M, M], one matrix for each similarity.

        ``check`` is called before each step; an exception of it ends the comparison.

        Raises:
            MissingModel: a similarity has no model.
        """
        chosen = [similarities.get(name) for name in self.similarities]
        return np.stack([one.matrix(answers, question=question, check=check) for one in chosen])


def vote(request: pb.VoteRequest, similarities: Similarities, check: Check = unchecked) -> pb.VoteResponse:
    """Let the answers of an ensemble vote (Li et al. 2024, equations 6 and 7).

    ``check`` is called before each step; an exception of it ends the vote.

    Raises:
        MissingModel: a similarity has no model.
    """
    answers = list(request.answers)
    fields.sized("answers", len(answers), 2, MAX_VOTES)
    rules, weights = _read_vote("", request, len(answers))
    check()
    similarity = rules.matrices(answers, request.question, similarities, check)
    check()
    outcome = ensemble.vote(similarity, rules.similarity_weights, weights, **rules.options)
    shares = np.asarray(rules.similarity_weights, np.float64)
    combined = np.tensordot(shares / shares.sum(), similarity, axes=1)
    agreement = ensemble.agreement(combined, outcome.winner, threshold=rules.options["threshold"])
    return pb.VoteResponse(
        winner=outcome.winner, scores=outcome.scores, pooled=outcome.pooled, agreement=defined(agreement)
    )


class AnytimeVote:
    """A vote whose answers arrive one by one. Not thread-safe.

    A new answer is compared only with those that arrived before: the cost of an arrival grows with the number
    of answers, not with its square.

    Args:
        request: the first message.
        similarities: how alike answers are.

    Raises:
        InvalidField: the message is no start, or breaks a bound of the contract.
        MissingModel: a similarity has no model.
    """

    def __init__(
        self, request: pb.VoteAnytimeRequest, similarities: Similarities, check: Check = unchecked
    ) -> None:
        check()
        if request.WhichOneof("event") != "start":
            raise InvalidField("start", "must be the first message")
        start = request.start
        if start.vote.answers:
            raise InvalidField("start.vote.answers", "must be empty: answers come one by one")
        self.size: Final = checks.between("start.num_answers", start.num_answers, 2, MAX_EXPECTED)
        """Number of expected answers."""
        self._question = start.vote.question
        self._rules, self._weights = _read_vote("start.vote.", start.vote, self.size)
        self._similarities = [similarities.get(name) for name in self._rules.similarities]
        self._similarity = np.zeros((len(self._similarities), self.size, self.size))
        self._texts: dict[int, str] = {}
        self._arrived = np.zeros(self.size, np.bool_)
        self._missing = np.zeros(self.size, np.bool_)

    def cost(self, request: pb.VoteAnytimeRequest) -> cost.Cost:
        """Return the cost of adding an answer.

        Raises:
            InvalidField: it is too much, or the answers together are too long to hold.
        """
        text = request.answer.text
        if (total := sum(map(len, self._texts.values())) + len(text)) > MAX_SESSION_CHARACTERS:
            raise InvalidField(
                "answer.text",
                f"makes {total:,} characters with the answers so far, at most {MAX_SESSION_CHARACTERS:,} are "
                "allowed: send fewer or shorter answers",
            )
        return cost.arrival(text, list(self._texts.values()), self.size, self._rules.similarities)

    def add(self, request: pb.VoteAnytimeRequest, check: Check = unchecked) -> pb.VoteAnytimeResponse:
        """Take an answer, or note that it is missing, and return the vote so far.

        ``check`` is called before each step; an exception of it ends the session.

        Raises:
            InvalidField: the message is no answer, or its index is not expected or was given before.
            MissingModel: a similarity's model cannot be loaded.
        """
        kind = request.WhichOneof("event")
        if kind == "start":
            raise InvalidField("start", "must be the first message, and come once")
        if kind != "answer":
            raise InvalidField("event", "must be start or answer")
        answer = request.answer
        index = checks.between("answer.index", answer.index, 0, self.size - 1)
        if self._arrived[index] or self._missing[index]:
            raise InvalidField("answer.index", f"{index} came before")
        if answer.missing and answer.text:
            raise InvalidField("answer.text", "must be empty where the answer is missing")
        if answer.missing:
            self._missing[index] = True
        else:
            self._arrive(index, answer.text, check)
        check()
        found = ensemble.anytime_vote(
            self._similarity,
            self._rules.similarity_weights,
            self._weights,
            self._arrived,
            self._missing,
            low=[one.low for one in self._similarities],
            high=[one.high for one in self._similarities],
            **self._rules.options,
        )
        return pb.VoteAnytimeResponse(
            winner=found.winner,
            decided=found.decided,
            num_arrived=found.arrived,
            num_waiting=int(np.count_nonzero(~(self._arrived | self._missing))),
            scores=found.scores,
            similarities=[] if answer.missing else self._row(index),
        )

    def _row(self, index: int) -> FloatArray:
        """Return the similarity of an answer to each other that arrived, over all measures; NaN elsewhere."""
        shares = np.asarray(self._rules.similarity_weights, np.float64)
        row = np.tensordot(shares / shares.sum(), self._similarity[:, index], axes=1)
        known = self._arrived.copy()
        known[index] = False
        return np.where(known, row, np.nan)

    def _arrive(self, index: int, text: str, check: Check) -> None:
        others = list(self._texts)
        pairs = [(text, self._texts[other]) for other in others]
        if pairs:
            rows = [one.pairs(pairs, question=self._question, check=check) for one in self._similarities]
            self._similarity[:, index, others] = rows
            self._similarity[:, others, index] = rows
        self._texts[index] = text
        self._arrived[index] = True


def read_rules(prefix: str, request: pb.VoteRequest) -> VoteRules:
    """Return how answers vote, with defaults for unset fields; ``prefix`` begins field paths.

    Raises:
        InvalidField: a bound of the contract is broken, or a similarity is unknown.
    """
    known = catalogue.names()
    chosen = list(request.similarities) or [known[0]]
    for index, name in enumerate(chosen):
        if name not in known:
            raise InvalidField(
                f"{prefix}similarities[{index}]", f"must be one of {', '.join(known)}, got {name[:80]!r}"
            )
        if name in chosen[:index]:
            raise InvalidField(f"{prefix}similarities[{index}]", f"{name} comes twice")
    pooling = _POOLINGS.read(f"{prefix}pooling", request.pooling)
    weights = fields.weights(
        f"{prefix}similarity_weights", request.similarity_weights, len(chosen), "similarities"
    )
    threshold = request.threshold if request.HasField("threshold") else 0.8
    retriever_filter = request.retriever_filter if request.HasField("retriever_filter") else 0.1
    return VoteRules(
        similarities=chosen,
        similarity_weights=weights or [1.0] * len(chosen),
        options=PollOptions(
            pooling=pooling,
            threshold=checks.between(f"{prefix}threshold", threshold, 0, 1),
            retriever_filter=checks.between(f"{prefix}retriever_filter", retriever_filter, 0, 1),
            drop_filtered=request.drop_filtered,
        ),
    )


def check_question(field: str, question: str, rules: VoteRules) -> None:
    """Check that a question is not too long, and given where a similarity reads it.

    Raises:
        InvalidField: it is not.
    """
    fields.question(field, question)
    if rules.reads_question and not question.strip():
        raise InvalidField(field, "must be given: a similarity reads it")


def _read_vote(prefix: str, request: pb.VoteRequest, size: int) -> tuple[VoteRules, list[float]]:
    """Return the rules of a vote and the weights of its retrievers."""
    rules = read_rules(prefix, request)
    check_question(f"{prefix}question", request.question, rules)
    field = f"{prefix}retriever_weights"
    # Equal weights are ones: shares of a large ensemble would all be below the filter.
    weights = fields.weights(field, request.retriever_weights, size, "answers") or [1.0] * size
    retriever_filter = rules.options["retriever_filter"]
    if max(weights) <= retriever_filter:
        raise InvalidField(field, f"must be above the filter, {retriever_filter:g}, at least once")
    return rules, weights
