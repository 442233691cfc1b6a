"""Votes, votes while answers come in, and the search for their weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from meshkit import checks
from meshkit.errors import InvalidField
from ragcore.ensemble import AnytimeVote, Pooling, WeightSearch
from raglab import similarities
from ragmesh.evaluator.v1 import evaluator_service_pb2 as pb
from services.evaluator.codec import fields
from services.evaluator.codec.measuring.intervals import defined
from services.evaluator.evaluation.votes import Ballot, VoteMeasured, VoteQuestion, VoteRules
from services.evaluator.evaluation.weights import SearchQuestion

MAX_VOTES: Final = 1000
"""Most answers of one vote."""
MAX_EXPECTED: Final = 100
"""Most answers of a vote while they come in."""
MAX_QUESTIONS: Final = 10_000
"""Most training questions."""
MAX_CELLS: Final = 2**27
"""Most similarities of a search that are held at a time: 1 GiB."""

_POOLINGS: Final[dict[int, Pooling]] = {
    pb.VoteRequest.POOLING_UNSPECIFIED: "mean",
    pb.VoteRequest.POOLING_MEAN: "mean",
    pb.VoteRequest.POOLING_MAX: "max",
    pb.VoteRequest.POOLING_MAJORITY: "majority",
    pb.VoteRequest.POOLING_PLURALITY: "plurality",
}


def vote_question(request: pb.VoteRequest) -> VoteQuestion:
    """Reads an ensemble's answers and how they vote.

    Raises:
        InvalidField: a bound of the contract is broken, or a similarity that there is none of.
    """
    if not 2 <= len(request.answers) <= MAX_VOTES:
        raise InvalidField("answers", f"must be 2 to {MAX_VOTES}, {len(request.answers)} are given")
    return _question("", request, list(request.answers))


def vote_response(measured: VoteMeasured) -> pb.VoteResponse:
    """Writes the outcome of a vote."""
    return pb.VoteResponse(
        winner=measured.vote.winner,
        scores=measured.vote.scores,
        pooled=measured.vote.pooled,
        agreement=defined(measured.agreement),
    )


def anytime_question(request: pb.VoteAnytimeRequest) -> VoteQuestion:
    """Reads the first message of a vote whose answers are to come.

    Raises:
        InvalidField: it is no start, or a bound of the contract is broken.
    """
    if request.WhichOneof("event") != "start":
        raise InvalidField("start", "must be the first message")
    start = request.start
    if start.vote.answers:
        raise InvalidField("start.vote.answers", "must be empty: answers come one by one")
    size = checks.between("start.num_answers", start.num_answers, 2, MAX_EXPECTED)
    return _question("start.vote.", start.vote, [""] * size)


def anytime_answer(request: pb.VoteAnytimeRequest, ballot: Ballot) -> tuple[int, str | None]:
    """Reads an answer that comes in: its index and its text, None where there will be none.

    Raises:
        InvalidField: it is no answer, none that is expected, or one that was told before.
    """
    kind = request.WhichOneof("event")
    if kind == "start":
        raise InvalidField("start", "must be the first message, and come once")
    if kind != "answer":
        raise InvalidField("event", "must be start or answer")
    answer = request.answer
    index = checks.between("answer.index", answer.index, 0, ballot.size - 1)
    if ballot.knows(index):
        raise InvalidField("answer.index", f"{index} came before")
    if answer.missing and answer.text:
        raise InvalidField("answer.text", "must be empty where the answer is missing")
    return index, None if answer.missing else answer.text


def anytime_response(vote: AnytimeVote, waiting: int) -> pb.VoteAnytimeResponse:
    """Writes a vote so far; ``waiting`` counts the answers that may still come."""
    return pb.VoteAnytimeResponse(
        winner=vote.winner,
        decided=vote.decided,
        num_arrived=vote.arrived,
        num_waiting=waiting,
        scores=vote.scores,
    )


def search_question(request: pb.SearchVoteWeightsRequest) -> SearchQuestion:
    """Reads training questions and how their answers vote.

    Raises:
        InvalidField: a bound of the contract is broken, or more similarities than a search may hold.
    """
    count = len(request.questions)
    if not 1 <= count <= MAX_QUESTIONS:
        raise InvalidField("questions", f"must be 1 to {MAX_QUESTIONS}, {count} are given")
    rules = _rules("vote.", request.vote)
    asked = any(similarities.reads_question(name) for name in rules.similarities)
    retrievers = len(request.questions[0].answers)
    if not 2 <= retrievers <= MAX_VOTES:
        raise InvalidField("questions[0].answers", f"must be 2 to {MAX_VOTES}, {retrievers} are given")
    cells = count * len(rules.similarities) * retrievers**2
    if cells > MAX_CELLS:
        raise InvalidField(
            "questions", f"questions · similarities · answers² must be at most {MAX_CELLS}, is {cells}"
        )
    correctness = np.empty((count, retrievers))
    for index, question in enumerate(request.questions):
        field = f"questions[{index}]"
        _text(f"{field}.question", question.question, needed=asked)
        if len(question.answers) != retrievers:
            raise InvalidField(
                f"{field}.answers",
                f"must be {retrievers} as in questions[0], {len(question.answers)} are given",
            )
        if len(question.correctness) != retrievers:
            raise InvalidField(
                f"{field}.correctness",
                f"must be one per answer, {retrievers}; {len(question.correctness)} are given",
            )
        correctness[index] = fields.numbers(f"{field}.correctness", question.correctness, 0, 1)
    max_weight = request.max_weight if request.HasField("max_weight") else 0.6
    if not 0 < max_weight <= 1:
        raise InvalidField("max_weight", f"must be in (0, 1], got {max_weight}")
    if rules.retriever_filter >= max_weight / 2:
        raise InvalidField(
            "vote.retriever_filter",
            f"must be below half of max_weight, {max_weight / 2:g}, where the search begins, "
            f"got {rules.retriever_filter:g}",
        )
    return SearchQuestion(
        questions=[question.question for question in request.questions],
        answers=[list(question.answers) for question in request.questions],
        correctness=correctness,
        rules=rules,
        max_weight=max_weight,
    )


def search_response(found: WeightSearch) -> pb.SearchVoteWeightsResponse:
    """Writes the best weights."""
    return pb.SearchVoteWeightsResponse(
        retriever_weights=found.retriever_weights,
        similarity_weights=found.metric_weights,
        correctness=found.correctness,
        trace=found.trace,
    )


def _question(prefix: str, request: pb.VoteRequest, answers: Sequence[str]) -> VoteQuestion:
    rules = _rules(prefix, request)
    asked = any(similarities.reads_question(name) for name in rules.similarities)
    _text(f"{prefix}question", request.question, needed=asked)
    field = f"{prefix}retriever_weights"
    # Equal weights are ones: shares of a large ensemble would all be below the filter.
    weights = fields.weights(field, request.retriever_weights, len(answers), "answers")
    weights = weights or [1.0] * len(answers)
    if max(weights) <= rules.retriever_filter:
        raise InvalidField(field, f"must be above the filter, {rules.retriever_filter:g}, at least once")
    return VoteQuestion(request.question, answers, weights, rules)


def _rules(prefix: str, request: pb.VoteRequest) -> VoteRules:
    known = similarities.names()
    chosen = list(request.similarities) or [known[0]]
    for index, name in enumerate(chosen):
        if name not in known:
            raise InvalidField(
                f"{prefix}similarities[{index}]", f"must be one of {', '.join(known)}, got {name[:80]!r}"
            )
        if name in chosen[:index]:
            raise InvalidField(f"{prefix}similarities[{index}]", f"{name} comes twice")
    if request.pooling not in _POOLINGS:
        names = fields.names(pb.VoteRequest.Pooling.keys())
        raise InvalidField(f"{prefix}pooling", f"must be one of {names}, got {request.pooling}")
    weights = fields.weights(
        f"{prefix}similarity_weights", request.similarity_weights, len(chosen), "similarities"
    )
    threshold = request.threshold if request.HasField("threshold") else 0.8
    retriever_filter = request.retriever_filter if request.HasField("retriever_filter") else 0.1
    return VoteRules(
        similarities=chosen,
        similarity_weights=weights or [1.0] * len(chosen),
        pooling=_POOLINGS[request.pooling],
        threshold=checks.between(f"{prefix}threshold", threshold, 0, 1),
        retriever_filter=checks.between(f"{prefix}retriever_filter", retriever_filter, 0, 1),
        drop_filtered=request.drop_filtered,
    )


def _text(field: str, question: str, *, needed: bool) -> None:
    if len(question.encode()) > fields.MAX_QUESTION_BYTES:
        raise InvalidField(field, f"must be at most {fields.MAX_QUESTION_BYTES} bytes")
    if needed and not question.strip():
        raise InvalidField(field, "must be given: a similarity reads it")
