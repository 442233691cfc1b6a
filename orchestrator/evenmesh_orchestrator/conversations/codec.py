"""Conversations as messages, and the bounds of the contract, each checked with the field named."""

from __future__ import annotations

import math
import re
from typing import Final

from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire import checks
from evenmesh.wire.errors import InvalidField, MeshError, PermissionDenied
from evenmesh_core.earlier_words import EARLIER_TURNS
from evenmesh_kit.rpc.statuses import item_error
from evenmesh_orchestrator import codec
from evenmesh_orchestrator.asks.request import Defaults, check_enum, read_ask
from evenmesh_orchestrator.conversations.conversation import Conversation
from evenmesh_orchestrator.conversations.options import Options, Target
from evenmesh_orchestrator.conversations.turns import Measured, SearchText, TurnEnd, TurnEvent
from evenmesh_orchestrator.domain import Ask

MAX_TIMEOUT_MS: Final = 3_600_000
"""Longest time for a turn that a client can ask for. Milliseconds."""

_MAX_TARGETS: Final = 16
_MAX_GROUPS: Final = 1_000
_MAX_GROUP_BYTES: Final = 1_024
_MAX_ATTRIBUTE_BYTES: Final = 128
_MAX_PATIENCE: Final = 1_000_000
_SUM_SLACK: Final = 1e-6
_ATTRIBUTE: Final = re.compile(r"\w+")
_OF_THE_TURN: Final = ("question", "labels", "query_id", "want_report")


def read_turn(request: pb.AskRequest, conversation: Conversation, defaults: Defaults) -> tuple[Ask, bytes]:
    """Read a turn.

    Returns:
        The ask, and the settings of later turns, serialized.

    Raises:
        InvalidField: a bound is broken, fields contradict each other, or one is not for conversations.
        PermissionDenied: the caller is bound to other agents than that of the turn, or of the settings.
    """
    if request.HasField("ensemble"):
        raise InvalidField("ask.ensemble", "is not for conversations")
    if request.turns:
        raise InvalidField("ask.turns", "cannot be given in a conversation, which holds its turns itself")
    if request.search:
        raise InvalidField(
            "ask.search", "cannot be given in a conversation, which searches as its options.history says"
        )
    turn = pb.AskRequest()
    turn.CopyFrom(request)
    for name in _OF_THE_TURN:
        turn.ClearField(name)
    settings = turn.SerializeToString()
    if conversation.settings and not settings:
        settings = conversation.settings
        turn.ParseFromString(settings)
    turn.question, turn.query_id = request.question, request.query_id
    turn.want_report = request.want_report
    if request.HasField("labels"):
        turn.labels.CopyFrom(request.labels)
    if conversation.run_id:
        turn.run_id = conversation.run_id
    try:
        return read_ask(turn, defaults), settings
    except InvalidField as error:
        raise InvalidField(f"ask.{error.field}", error.message) from None
    except PermissionDenied as error:
        raise PermissionDenied(error.message, field=f"ask.{error.field}") from None


def read_options(message: pb.ConversationOptions) -> Options:
    """Read the options of a conversation.

    Raises:
        InvalidField: a bound of the contract is broken.
    """
    check_enum("options.history", message.history, pb.ConversationOptions.History)
    turns = message.history_turns if message.HasField("history_turns") else EARLIER_TURNS
    if len(message.targets) > _MAX_TARGETS:
        raise InvalidField("options.targets", f"must be at most {_MAX_TARGETS}, has {len(message.targets)}")
    targets = tuple(_target(f"options.targets[{at}]", one) for at, one in enumerate(message.targets))
    for at, target in enumerate(targets):
        if target.attribute in (one.attribute for one in targets[:at]):
            raise InvalidField(f"options.targets[{at}].attribute", f"is a duplicate: {target.attribute!r}")
    for name in ("template", "entity_attribute"):
        checks.at_most(f"options.{name}", getattr(message, name), _MAX_ATTRIBUTE_BYTES)
    request = evaluator_pb.EvaluateConversationRequest
    measure = request(method=message.method, irrelevant_turns=message.irrelevant_turns)
    if message.HasField("patience"):
        measure.patience = checks.between("options.patience", message.patience, 1, _MAX_PATIENCE)
    if message.HasField("relevance_weight"):
        measure.alpha = checks.between("options.relevance_weight", message.relevance_weight, 0, 1)
    check_enum("options.method", message.method, request.Method)
    check_enum("options.irrelevant_turns", message.irrelevant_turns, request.IrrelevantTurns)
    return Options(
        history=message.history or pb.ConversationOptions.HISTORY_WORDS,
        history_turns=checks.between("options.history_turns", turns, 1, 100),
        template=message.template,
        targets=targets,
        entity_attribute=message.entity_attribute,
        measure=measure,
    )


def timeout_s(request: pb.ConverseRequest, default_s: float) -> float:
    """Return the seconds that a turn may take.

    Raises:
        InvalidField: the bound is broken.
    """
    if not request.HasField("timeout_ms"):
        return default_s
    return checks.between("timeout_ms", request.timeout_ms, 1, MAX_TIMEOUT_MS) / 1000


def response(conversation: Conversation, event: TurnEvent) -> pb.ConverseResponse:
    """Return the message of one event of a turn that is not yet in the conversation."""
    message = pb.ConverseResponse(conversation_id=conversation.id, turn=conversation.next_turn)
    match event:
        case SearchText(text):
            message.looked_for = text
        case Measured():
            message.report.CopyFrom(_report(conversation, event))
        case TurnEnd():
            message.event.done.CopyFrom(codec.done(event.finished))
            message.transcript = event.state.text
        case _:
            message.event.CopyFrom(codec.event(event))
    return message


def failed(conversation: Conversation, error: MeshError) -> pb.ConverseResponse:
    """Return the message of a failed turn."""
    return pb.ConverseResponse(
        conversation_id=conversation.id,
        turn=conversation.next_turn,
        failed=pb.TurnFailed(error=item_error(error)),
    )


def _report(conversation: Conversation, measured: Measured) -> pb.ConversationReport:
    state, fairness = measured.state, measured.fairness
    report = pb.ConversationReport(
        so_far=fairness, num_ungrouped=state.num_ungrouped, num_words=state.num_words
    )
    if conversation.relevance is not None:
        report.turn_relevance = max(0.0, fairness.relevance - conversation.relevance)
    similarities = [one.similarity[-1] for one in fairness.attributes.values() if one.similarity]
    if similarities and not any(map(math.isnan, similarities)):
        report.turn_group_fairness = sum(similarities) / len(similarities)
    nuggets = state.nuggets[-1]
    for source, nugget, repeated in zip(state.sources[-1], nuggets, state.repeated(), strict=True):
        entity = report.entities.add(
            passage_id=source.passage_id,
            entity=source.entity,
            level=source.level,
            repeated=repeated,
            word_count=nugget.word_count,
        )
        for name, shares in nugget.membership.items():
            entity.membership[name].shares.extend(shares)
    return report


def _target(field: str, message: pb.GroupTarget) -> Target:
    attribute = message.attribute
    if not _ATTRIBUTE.fullmatch(attribute) or len(attribute.encode()) > _MAX_ATTRIBUTE_BYTES:
        raise InvalidField(
            f"{field}.attribute",
            f"must be 1 to {_MAX_ATTRIBUTE_BYTES} bytes of letters, digits and '_', got {attribute!r}",
        )
    groups = tuple(message.groups)
    if not 2 <= len(groups) <= _MAX_GROUPS:
        raise InvalidField(f"{field}.groups", f"must be 2 to {_MAX_GROUPS} groups, has {len(groups)}")
    seen: set[str] = set()
    for at, group in enumerate(groups):
        checks.text(f"{field}.groups[{at}]", group, max_bytes=_MAX_GROUP_BYTES)
        if group in seen:
            raise InvalidField(f"{field}.groups[{at}]", f"is a duplicate: {group!r}")
        seen.add(group)
    shares = tuple(message.shares) or (1 / len(groups),) * len(groups)
    if len(shares) != len(groups):
        raise InvalidField(
            f"{field}.shares", f"must be as many as groups, {len(groups)}, or none; has {len(shares)}"
        )
    for at, share in enumerate(shares):
        checks.between(f"{field}.shares[{at}]", share, 0, 1)
    if abs(sum(shares) - 1) > _SUM_SLACK:
        raise InvalidField(f"{field}.shares", f"must sum to 1, sum to {sum(shares):g}")
    check_enum(f"{field}.divergence", message.divergence, evaluator_pb.AttributeTarget.Divergence)
    divergence = message.divergence or evaluator_pb.AttributeTarget.DIVERGENCE_JSD
    return Target(attribute, groups, shares, divergence)
