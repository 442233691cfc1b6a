"""Relevance and group fairness of a conversation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire import checks
from evenmesh.wire.choices import Choices
from evenmesh.wire.errors import InvalidField
from evenmesh_core import group_fairness
from evenmesh_core.errors import InvalidInput
from evenmesh_core.group_fairness import ConversationFairness, Nugget, parse_transcripts
from evenmesh_evaluator.domain import JudgedConversation
from evenmesh_evaluator.measures import groups
from evenmesh_kit.compute.steps import Check, unchecked

_Request = pb.EvaluateConversationRequest
_METHODS: Final = Choices[Literal["independent", "cumulative"]](
    _Request.Method.DESCRIPTOR, ("independent", "cumulative"), "independent"
)
_IRRELEVANT_TURNS: Final = Choices[Literal["ignore", "uniform"]](
    _Request.IrrelevantTurns.DESCRIPTOR, ("ignore", "uniform"), "ignore"
)
_TURN_WEIGHTS: Final = Choices[Literal["equal", "position"]](
    _Request.TurnWeights.DESCRIPTOR, ("equal", "position"), "equal"
)


def conversation(
    request: pb.EvaluateConversationRequest, check: Check = unchecked
) -> pb.EvaluateConversationResponse:
    """Measure relevance and group fairness of a conversation, and of the turns of each attribute.

    ``check`` is called repeatedly; an exception of it ends the computation.
    """
    found = fairness(read_conversation(request, check), check)
    check()
    response = pb.EvaluateConversationResponse(
        relevance=found.relevance,
        group_fairness=found.group_fairness,
        combined=found.combined,
        position_weights=found.position_weights,
    )
    for name, part in found.by_attribute.items():
        written = response.attributes[name]
        written.group_fairness = part.group_fairness
        written.similarity.extend(float("nan") if one is None else one for one in part.similarity)
        for achieved in part.achieved:
            written.achieved.add(shares=() if achieved is None else achieved)
    return response


def read_conversation(
    request: pb.EvaluateConversationRequest, check: Check = unchecked
) -> JudgedConversation:
    """Return a conversation, given as turns or as a transcript, with its targets.

    ``check`` is called before each turn; an exception of it ends the reading.

    Raises:
        InvalidField: a bound of the contract is broken.
    """
    if request.transcript and request.turns:
        raise InvalidField("transcript", "must be empty where turns are given")
    if not request.transcript and not request.turns:
        raise InvalidField("turns", "must be at least one system turn, or a transcript in their place")
    if not request.attributes:
        raise InvalidField("attributes", "must be at least one")
    method = _METHODS.read("method", request.method)
    irrelevant_turns = _IRRELEVANT_TURNS.read("irrelevant_turns", request.irrelevant_turns)
    turn_weights = _TURN_WEIGHTS.read("turn_weights", request.turn_weights)
    patience = request.patience if request.HasField("patience") else 1250
    alpha = request.alpha if request.HasField("alpha") else 0.5
    check()
    return JudgedConversation(
        turns=_transcript(request.transcript) if request.transcript else _turns(request.turns, check),
        attributes=groups.attributes(request.attributes),
        patience=checks.between("patience", patience, 1, 1_000_000),
        alpha=checks.between("alpha", alpha, 0, 1),
        method=method,
        irrelevant_turns=irrelevant_turns,
        turn_weights=turn_weights,
        attribute_weights=_attribute_weights(request.attribute_weights),
        from_transcript=bool(request.transcript),
    )


def fairness(judged: JudgedConversation, check: Check = unchecked) -> ConversationFairness:
    """Return relevance and group fairness of a conversation (Sakai 2023, equations 3 to 10).

    Raises:
        InvalidField: arguments that do not fit each other; the path is that of the request.
    """
    try:
        return group_fairness.conversation(
            judged.turns,
            judged.attributes,
            patience=judged.patience,
            method=judged.method,
            irrelevant_turns=judged.irrelevant_turns,
            turn_weights=judged.turn_weights,
            attribute_weights=judged.attribute_weights,
            alpha=judged.alpha,
            check=check,
        )
    except InvalidInput as error:
        path = re.sub(r"^(?:len|sum)\((.*)\)$", r"\1", error.argument)
        path = re.sub(r"^turns\[(\d+)\]\[(\d+)\]", r"turns[\1].nuggets[\2]", path)
        if judged.from_transcript and path.startswith("turns"):
            path = "transcript"
        raise InvalidField(path, str(error)) from error


def _attribute_weights(weights: Mapping[str, float]) -> dict[str, float] | None:
    if not weights:
        return None
    return {
        name: checks.between(f"attribute_weights[{name!r}]", weight, 0, 1) for name, weight in weights.items()
    }


def _turns(turns: Sequence[pb.ConversationTurn], check: Check) -> list[list[Nugget]]:
    read = []
    for t, turn in enumerate(turns):
        check()
        read.append([_nugget(f"turns[{t}].nuggets[{i}]", nugget) for i, nugget in enumerate(turn.nuggets)])
    return read


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
