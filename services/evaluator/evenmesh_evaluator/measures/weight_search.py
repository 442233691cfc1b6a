"""Search for the weights of a vote that answer training questions best."""

from __future__ import annotations

from typing import Final

import numpy as np

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField
from evenmesh_core import ensemble
from evenmesh_core.arrays import FloatArray
from evenmesh_evaluator import fields
from evenmesh_evaluator.measures.votes import MAX_VOTES, VoteRules, check_question, read_rules
from evenmesh_kit.compute.steps import Check, unchecked
from evenmesh_lab.similarities import Similarities

MAX_QUESTIONS: Final = 10_000
"""Most training questions."""


def search_weights(
    request: pb.SearchVoteWeightsRequest, similarities: Similarities, check: Check = unchecked
) -> pb.SearchVoteWeightsResponse:
    """Search weights from many starts (Li et al. 2024, sections 4.2 and 4.3). Deterministic.

    Args:
        request: the training questions, and how their answers vote.
        similarities: how alike answers are.
        check: called repeatedly; an exception of it ends the search.

    Raises:
        MissingModel: a similarity has no model.
    """
    check()
    fields.sized("questions", len(request.questions), 1, MAX_QUESTIONS)
    rules = read_rules("vote.", request.vote)
    correctness = _correctness(request, rules)
    max_weight = request.max_weight if request.HasField("max_weight") else 0.6
    if not 0 < max_weight <= 1:
        raise InvalidField("max_weight", f"must be in (0, 1], got {max_weight}")
    retriever_filter = rules.options["retriever_filter"]
    if retriever_filter >= max_weight / 2:
        raise InvalidField(
            "vote.retriever_filter",
            f"must be below half of max_weight, {max_weight / 2:g}, where the search begins, "
            f"got {retriever_filter:g}",
        )
    questions, retrievers = correctness.shape
    similarity = np.empty((questions, len(rules.similarities), retrievers, retrievers))
    for at, question in enumerate(request.questions):
        check()
        similarity[at] = rules.matrices(list(question.answers), question.question, similarities, check)
    found = ensemble.search_weights(
        similarity, correctness, max_weight=max_weight, check=check, **rules.options
    )
    return pb.SearchVoteWeightsResponse(
        retriever_weights=found.retriever_weights,
        similarity_weights=found.metric_weights,
        correctness=found.correctness,
        trace=found.trace,
        exact=found.exact,
    )


def _correctness(request: pb.SearchVoteWeightsRequest, rules: VoteRules) -> FloatArray:
    """Return how correct each answer to each question is, [Q, M] in [0, 1], with all bounds checked."""
    count, retrievers = len(request.questions), len(request.questions[0].answers)
    fields.sized("questions[0].answers", retrievers, 2, MAX_VOTES)
    correctness = np.empty((count, retrievers))
    for index, question in enumerate(request.questions):
        field = f"questions[{index}]"
        check_question(f"{field}.question", question.question, rules)
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
    return correctness
