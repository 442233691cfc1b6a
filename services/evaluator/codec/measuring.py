"""Questions that callers bring with their own rankings, answers or conversations, and what was measured."""

from __future__ import annotations

import math
from typing import Final

from meshkit import checks
from meshkit.errors import InvalidField
from ragcore.ensemble import Pooling, Vote
from ragcore.exposure import BrowsingModel, ExposureMetrics, position_weights, rbp, reciprocal_rank, top_k
from ragcore.group_fairness import Attribute, ConversationFairness, DivergenceName, Nugget
from ragmesh.evaluator.v1 import evaluator_service_pb2 as pb
from services.evaluator.codec import fields
from services.evaluator.evaluation import (
    SIMILARITIES,
    ConversationQuestion,
    ExposureQuestion,
    UtilityMeasured,
    UtilityQuestion,
    VoteQuestion,
)

MAX_VOTES: Final = 1000
"""Most answers of one vote."""
_SUM_SLACK: Final = 1e-6
_POOLINGS: Final[dict[int, Pooling]] = {
    pb.VoteRequest.POOLING_UNSPECIFIED: "mean",
    pb.VoteRequest.POOLING_MEAN: "mean",
    pb.VoteRequest.POOLING_MAX: "max",
    pb.VoteRequest.POOLING_MAJORITY: "majority",
    pb.VoteRequest.POOLING_PLURALITY: "plurality",
}
_DIVERGENCES: Final[dict[int, DivergenceName]] = {
    pb.AttributeTarget.DIVERGENCE_UNSPECIFIED: "rnod",
    pb.AttributeTarget.DIVERGENCE_RNOD: "rnod",
    pb.AttributeTarget.DIVERGENCE_NMD: "nmd",
    pb.AttributeTarget.DIVERGENCE_JSD: "jsd",
}


def exposure_question(request: pb.EvaluateExposureRequest) -> ExposureQuestion:
    """Reads rankings or exposure, and what was useful.

    Raises:
        InvalidField: a bound of the contract is broken.
    """
    n = len(request.usefulness)
    if not n:
        raise InvalidField("usefulness", "must be one grade per item, none is given")
    usefulness = fields.numbers("usefulness", request.usefulness, 0, 1000)
    given, expected = request.HasField("rankings"), len(request.exposure)
    if given == bool(expected):
        raise InvalidField("rankings", "must be given, or exposure in its place" + (", not both" * given))
    if expected and expected != n:
        raise InvalidField("exposure", f"must be one per item, {n}, as usefulness has; {expected} are given")
    if given and not request.rankings.depth:
        raise InvalidField("rankings.depth", "must be in [1, 1000], got 0")
    return ExposureQuestion(
        rankings=fields.rankings("rankings", request.rankings, n) if given else None,
        exposure=fields.numbers("exposure", request.exposure, 0, 1) if expected else None,
        usefulness=usefulness,
        k=checks.between("k", request.k, 1, 1000),
        browsing=_browsing(request.browsing) if request.HasField("browsing") else None,
    )


def exposure_response(metrics: ExposureMetrics) -> pb.EvaluateExposureResponse:
    """Writes exposure metrics; what is undefined without a useful item stays unset."""
    useful = not math.isnan(metrics.ee_r)
    return pb.EvaluateExposureResponse(
        exposure=metrics.exposure,
        target=metrics.target,
        ee_d=metrics.ee_d,
        ee_d_norm=metrics.ee_d_norm,
        ee_r=metrics.ee_r if useful else None,
        ee_l=metrics.ee_l if useful else None,
        ee_r_norm=None if math.isnan(metrics.ee_r_norm) else metrics.ee_r_norm,
    )


def utility_question(request: pb.EvaluateUtilityRequest) -> UtilityQuestion:
    """Reads answers and references.

    Raises:
        InvalidField: a bound of the contract is broken.
    """
    if not request.answers:
        raise InvalidField("answers", "must be at least one")
    if not request.references:
        raise InvalidField("references", "must be at least one")
    u_max = request.u_max if request.HasField("u_max") else None
    if u_max is not None and not 0 < u_max <= 1:
        raise InvalidField("u_max", f"must be in (0, 1], got {u_max}")
    return UtilityQuestion(
        answers=list(request.answers),
        references=list(request.references),
        metric=fields.metric("metric", request.metric),
        weights=fields.weights("weights", request.weights, len(request.answers), "answers"),
        u_max=u_max,
    )


def utility_response(measured: UtilityMeasured) -> pb.EvaluateUtilityResponse:
    """Writes utilities."""
    return pb.EvaluateUtilityResponse(
        utilities=measured.utilities,
        expected_utility=measured.expected,
        normalized_expected_utility=measured.normalized,
    )


def vote_question(request: pb.VoteRequest) -> VoteQuestion:
    """Reads an ensemble's answers and how they vote.

    Raises:
        InvalidField: a bound of the contract is broken, or a similarity that this server does not have.
    """
    if not 2 <= len(request.answers) <= MAX_VOTES:
        raise InvalidField("answers", f"must be 2 to {MAX_VOTES}, {len(request.answers)} are given")
    if len(request.question.encode()) > fields.MAX_QUESTION_BYTES:
        raise InvalidField("question", f"must be at most {fields.MAX_QUESTION_BYTES} bytes")
    similarities = list(request.similarities) or [next(iter(SIMILARITIES))]
    for index, name in enumerate(similarities):
        if name not in SIMILARITIES:
            raise InvalidField(
                f"similarities[{index}]", f"must be one of {', '.join(SIMILARITIES)}, got {name[:80]!r}"
            )
    if request.pooling not in _POOLINGS:
        names = fields.names(pb.VoteRequest.Pooling.keys())
        raise InvalidField("pooling", f"must be one of {names}, got {request.pooling}")
    threshold = request.threshold if request.HasField("threshold") else 0.8
    retriever_filter = request.retriever_filter if request.HasField("retriever_filter") else 0.1
    votes, measures = len(request.answers), len(similarities)
    return VoteQuestion(
        answers=list(request.answers),
        # Equal weights are ones: shares of a large ensemble would all be below the filter.
        retriever_weights=fields.weights("retriever_weights", request.retriever_weights, votes, "answers")
        or [1.0] * votes,
        similarities=similarities,
        similarity_weights=fields.weights(
            "similarity_weights", request.similarity_weights, measures, "similarities"
        )
        or [1.0] * measures,
        pooling=_POOLINGS[request.pooling],
        threshold=checks.between("threshold", threshold, 0, 1),
        retriever_filter=checks.between("retriever_filter", retriever_filter, 0, 1),
    )


def vote_response(vote: Vote) -> pb.VoteResponse:
    """Writes the outcome of a vote."""
    return pb.VoteResponse(winner=vote.winner, scores=vote.scores)


def conversation_question(request: pb.EvaluateConversationRequest) -> ConversationQuestion:
    """Reads a conversation and its targets.

    Raises:
        InvalidField: a bound of the contract is broken.
    """
    if not request.turns:
        raise InvalidField("turns", "must be at least one system turn")
    if not request.attributes:
        raise InvalidField("attributes", "must be at least one")
    patience = request.patience if request.HasField("patience") else 1250
    alpha = request.alpha if request.HasField("alpha") else 0.5
    return ConversationQuestion(
        turns=[
            [_nugget(f"turns[{t}].nuggets[{i}]", nugget) for i, nugget in enumerate(turn.nuggets)]
            for t, turn in enumerate(request.turns)
        ],
        attributes={
            name: _attribute(f"attributes[{name!r}]", target) for name, target in request.attributes.items()
        },
        patience=checks.between("patience", patience, 1, 1_000_000),
        alpha=checks.between("alpha", alpha, 0, 1),
    )


def conversation_response(fairness: ConversationFairness) -> pb.EvaluateConversationResponse:
    """Writes relevance and group fairness."""
    return pb.EvaluateConversationResponse(
        relevance=fairness.relevance,
        group_fairness=fairness.group_fairness,
        combined=fairness.combined,
    )


def _browsing(model: pb.BrowsingModel) -> BrowsingModel:
    kind = model.WhichOneof("model")
    if kind == "top_k":
        return top_k(checks.between("browsing.top_k", model.top_k, 1, 1000))
    if kind == "rbp_patience":
        if not 0 <= model.rbp_patience < 1:
            raise InvalidField("browsing.rbp_patience", f"must be in [0, 1), got {model.rbp_patience}")
        return rbp(model.rbp_patience)
    if kind == "reciprocal_rank":
        if not model.reciprocal_rank:
            raise InvalidField("browsing.reciprocal_rank", "must be true where it is chosen")
        return reciprocal_rank
    if kind == "position_weights":
        field = "browsing.position_weights.weights"
        if not model.position_weights.weights:
            raise InvalidField(field, "must be at least one")
        return position_weights(fields.numbers(field, model.position_weights.weights, 0, 1))
    raise InvalidField(
        "browsing.model", "must be one of top_k, rbp_patience, reciprocal_rank, position_weights"
    )


def _nugget(field: str, message: pb.Nugget) -> Nugget:
    return Nugget(
        word_count=checks.between(f"{field}.word_count", message.word_count, 1, 2**31 - 1),
        gain=checks.between(f"{field}.gain", message.gain, 0, 1),
        membership={
            name: _shares(f"{field}.membership[{name!r}]", shares)
            for name, shares in message.membership.items()
        },
    )


def _attribute(field: str, message: pb.AttributeTarget) -> Attribute:
    if message.divergence not in _DIVERGENCES:
        names = fields.names(pb.AttributeTarget.Divergence.keys())
        raise InvalidField(f"{field}.divergence", f"must be one of {names}, got {message.divergence}")
    return Attribute(_shares(f"{field}.gold", message.gold), _DIVERGENCES[message.divergence])


def _shares(field: str, message: pb.Distribution) -> list[float]:
    fields.numbers(field, message.shares, 0, 1)
    if abs(sum(message.shares) - 1) > _SUM_SLACK:
        raise InvalidField(field, f"must sum to 1, sums to {sum(message.shares):g}")
    return list(message.shares)
