"""Conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from meshkit import checks
from meshkit.errors import InvalidField
from ragcore.errors import InvalidInput
from ragcore.group_fairness import ConversationFairness, Nugget, parse_transcripts
from ragmesh.evaluator.v1 import evaluator_service_pb2 as pb
from services.evaluator.codec import fields
from services.evaluator.codec.measuring import groups
from services.evaluator.domain import ConversationQuestion

_Request = pb.EvaluateConversationRequest
_METHODS: Final[dict[int, Literal["independent", "cumulative"]]] = {
    _Request.METHOD_UNSPECIFIED: "independent",
    _Request.METHOD_INDEPENDENT: "independent",
    _Request.METHOD_CUMULATIVE: "cumulative",
}
_IRRELEVANT_TURNS: Final[dict[int, Literal["ignore", "uniform"]]] = {
    _Request.IRRELEVANT_TURNS_UNSPECIFIED: "ignore",
    _Request.IRRELEVANT_TURNS_IGNORE: "ignore",
    _Request.IRRELEVANT_TURNS_UNIFORM: "uniform",
}


def conversation_question(request: pb.EvaluateConversationRequest) -> ConversationQuestion:
    """Reads a conversation, as turns or as a transcript, and its targets.

    Raises:
        InvalidField: a bound of the contract is broken.
    """
    if request.transcript and request.turns:
        raise InvalidField("transcript", "must be empty where turns are given")
    if not request.transcript and not request.turns:
        raise InvalidField("turns", "must be at least one system turn, or a transcript in their place")
    if not request.attributes:
        raise InvalidField("attributes", "must be at least one")
    if request.method not in _METHODS:
        names = fields.names(_Request.Method.keys())
        raise InvalidField("method", f"must be one of {names}, got {request.method}")
    if request.irrelevant_turns not in _IRRELEVANT_TURNS:
        names = fields.names(_Request.IrrelevantTurns.keys())
        raise InvalidField("irrelevant_turns", f"must be one of {names}, got {request.irrelevant_turns}")
    patience = request.patience if request.HasField("patience") else 1250
    alpha = request.alpha if request.HasField("alpha") else 0.5
    return ConversationQuestion(
        turns=_transcript(request.transcript) if request.transcript else _turns(request.turns),
        attributes=groups.attributes(request.attributes),
        patience=checks.between("patience", patience, 1, 1_000_000),
        alpha=checks.between("alpha", alpha, 0, 1),
        method=_METHODS[request.method],
        irrelevant_turns=_IRRELEVANT_TURNS[request.irrelevant_turns],
        from_transcript=bool(request.transcript),
    )


def conversation_response(fairness: ConversationFairness) -> pb.EvaluateConversationResponse:
    """Writes relevance and group fairness, and the turns of each attribute."""
    response = pb.EvaluateConversationResponse(
        relevance=fairness.relevance,
        group_fairness=fairness.group_fairness,
        combined=fairness.combined,
        position_weights=fairness.position_weights,
    )
    for name, part in fairness.by_attribute.items():
        written = response.attributes[name]
        written.group_fairness = part.group_fairness
        written.similarity.extend(float("nan") if one is None else one for one in part.similarity)
        for achieved in part.achieved:
            written.achieved.add(shares=() if achieved is None else achieved)
    return response


def _turns(turns: Sequence[pb.ConversationTurn]) -> list[list[Nugget]]:
    return [
        [_nugget(f"turns[{t}].nuggets[{i}]", nugget) for i, nugget in enumerate(turn.nuggets)]
        for t, turn in enumerate(turns)
    ]


def _transcript(text: str) -> list[list[Nugget]]:
    try:
        transcripts = parse_transcripts(text)
        if len(transcripts) != 1:
            raise InvalidField("transcript", f"must be one conversation, it has {len(transcripts)}")
        turns = transcripts[0].nuggets()
    except InvalidInput as error:
        raise InvalidField("transcript", str(error)) from error
    if not turns:
        raise InvalidField("transcript", "must have at least one system turn, like '### S1'")
    return turns


def _nugget(field: str, message: pb.Nugget) -> Nugget:
    return Nugget(
        word_count=checks.between(f"{field}.word_count", message.word_count, 1, 2**31 - 1),
        gain=checks.between(f"{field}.gain", message.gain, 0, 1),
        membership=groups.memberships(f"{field}.membership", message.membership),
        entity=message.entity or None,
    )
