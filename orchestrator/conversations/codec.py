"""Conversations on the wire, and the bounds of the contract, each enforced with the field named."""

from __future__ import annotations

import math
import re
from typing import Final, cast

from meshkit import checks
from meshkit.errors import InvalidField, MeshError, item_error
from orchestrator import codec, domain
from orchestrator.clients import EvaluatorClient
from orchestrator.conversations.options import DEFAULT_HISTORY_TURNS, History, Options, Target
from orchestrator.conversations.shelf import Conversation, Standing
from orchestrator.conversations.talk import Fairness, Kept, LookedFor, Measured, TurnEvent
from orchestrator.expressions.sources import Catalogue
from ragmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from ragmesh.orchestrator.v1 import orchestrator_service_pb2 as pb

MAX_TIMEOUT_MS: Final = 3_600_000
"""Longest time for a turn that a client can ask for. Milliseconds."""

_MAX_TARGETS: Final = 16
_MAX_GROUPS: Final = 1_000
_MAX_GROUP_BYTES: Final = 1_024
_MAX_ATTRIBUTE_BYTES: Final = 128
_MAX_PATIENCE: Final = 1_000_000
_SUM_SLACK: Final = 1e-6
_ATTRIBUTE: Final = re.compile(r"\w+")
_HISTORIES: Final = {
    pb.ConversationOptions.HISTORY_UNSPECIFIED: History.WORDS,
    pb.ConversationOptions.HISTORY_NONE: History.NONE,
    pb.ConversationOptions.HISTORY_WORDS: History.WORDS,
    pb.ConversationOptions.HISTORY_REWRITE: History.REWRITE,
}
_OF_THE_TURN: Final = ("question", "labels", "query_id", "want_report")


def ask(
    request: pb.AskRequest,
    conversation: Conversation,
    *,
    default_collection: str,
    default_reranker: str,
    sources: Catalogue,
) -> tuple[domain.Ask, pb.AskRequest]:
    """Reads a turn; arguments as :func:`orchestrator.codec.ask`.

    Returns:
        The ask, and how later turns are to be answered.

    Raises:
        InvalidField: a bound is broken, or what is asked does not go together or is not for conversations.
    """
    if request.HasField("ensemble"):
        raise InvalidField("ask.ensemble", "is not for conversations")
    rest = pb.AskRequest()
    rest.CopyFrom(request)
    for name in _OF_THE_TURN:
        rest.ClearField(name)
    anew = conversation.kept is None or rest.ByteSize() > 0
    kept = rest if anew else cast(pb.AskRequest, conversation.kept)
    turn = pb.AskRequest()
    turn.CopyFrom(kept)
    turn.question, turn.query_id = request.question, request.query_id
    turn.want_report = request.want_report
    if request.HasField("labels"):
        turn.labels.CopyFrom(request.labels)
    if conversation.run_id:
        turn.run_id = conversation.run_id
    try:
        read = codec.ask(
            turn, default_collection=default_collection, default_reranker=default_reranker, sources=sources
        )
    except InvalidField as error:
        raise InvalidField(f"ask.{error.field}", error.message) from None
    return read, kept


def options(message: pb.ConversationOptions) -> Options:
    """Reads how a conversation goes.

    Raises:
        InvalidField: a bound of the contract is broken.
    """
    if message.history not in _HISTORIES:
        names = ", ".join(pb.ConversationOptions.History.keys())
        raise InvalidField("options.history", f"must be one of {names}, got {message.history}")
    turns = message.history_turns if message.HasField("history_turns") else DEFAULT_HISTORY_TURNS
    if len(message.targets) > _MAX_TARGETS:
        raise InvalidField("options.targets", f"must be at most {_MAX_TARGETS}, has {len(message.targets)}")
    targets = tuple(_target(f"options.targets[{at}]", one) for at, one in enumerate(message.targets))
    for at, target in enumerate(targets):
        if target.attribute in (one.attribute for one in targets[:at]):
            raise InvalidField(f"options.targets[{at}].attribute", f"is there twice: {target.attribute!r}")
    for name in ("template", "entity_attribute"):
        if (size := len(getattr(message, name).encode())) > _MAX_ATTRIBUTE_BYTES:
            raise InvalidField(f"options.{name}", f"must be at most {_MAX_ATTRIBUTE_BYTES} bytes, has {size}")
    measure = evaluator_pb.EvaluateConversationRequest(
        method=message.method, irrelevant_turns=message.irrelevant_turns
    )
    if message.HasField("patience"):
        measure.patience = checks.between("options.patience", message.patience, 1, _MAX_PATIENCE)
    if message.HasField("relevance_weight"):
        measure.alpha = checks.between("options.relevance_weight", message.relevance_weight, 0, 1)
    for name, kind in (
        ("method", evaluator_pb.EvaluateConversationRequest.Method),
        ("irrelevant_turns", evaluator_pb.EvaluateConversationRequest.IrrelevantTurns),
    ):
        if getattr(message, name) not in kind.values():
            raise InvalidField(f"options.{name}", f"must be one of {', '.join(kind.keys())}")
    return Options(
        history=_HISTORIES[message.history],
        history_turns=checks.between("options.history_turns", turns, 1, 100),
        template=message.template,
        targets=targets,
        entity_attribute=message.entity_attribute,
        measure=measure,
    )


def timeout_s(request: pb.ConverseRequest, default_s: float) -> float:
    """Seconds that a turn may take.

    Raises:
        InvalidField: the bound is broken.
    """
    if not request.HasField("timeout_ms"):
        return default_s
    return checks.between("timeout_ms", request.timeout_ms, 1, MAX_TIMEOUT_MS) / 1000


def response(conversation: Conversation, event: TurnEvent) -> pb.ConverseResponse:
    """Writes one event of a turn that is not kept yet."""
    made = pb.ConverseResponse(conversation_id=conversation.id, turn=conversation.next_turn)
    match event:
        case LookedFor(text):
            made.looked_for = text
        case Measured():
            made.report.CopyFrom(_report(conversation, event))
        case Kept():
            made.event.done.CopyFrom(codec.done(event.finished))
            made.transcript = event.standing.text
        case _:
            made.event.CopyFrom(codec.event(event))
    return made


def failed(conversation: Conversation, error: MeshError) -> pb.ConverseResponse:
    """Writes that a turn failed."""
    return pb.ConverseResponse(
        conversation_id=conversation.id,
        turn=conversation.next_turn,
        failed=pb.TurnFailed(error=item_error(error)),
    )


class EvaluatorMeasures:
    """Conversations measured by the evaluator, as :class:`orchestrator.conversations.talk.Measures`.

    Args:
        evaluator: is asked.
    """

    def __init__(self, evaluator: EvaluatorClient) -> None:
        self._evaluator = evaluator

    async def evaluate(self, conversation: Conversation, standing: Standing, *, timeout_s: float) -> Fairness:
        """See the port."""
        return await self._evaluator.evaluate(_question(conversation, standing), timeout_s=timeout_s)

    def observed(self, conversation: Conversation, standing: Standing) -> object:
        """See the port. Carries no text."""
        return evaluator_pb.ObservedConversation(
            conversation_id=conversation.id, judged=_question(conversation, standing)
        )


def _question(conversation: Conversation, standing: Standing) -> evaluator_pb.EvaluateConversationRequest:
    request = evaluator_pb.EvaluateConversationRequest()
    if conversation.options.measure is not None:
        request.CopyFrom(cast(evaluator_pb.EvaluateConversationRequest, conversation.options.measure))
    for turn in standing.nuggets:
        added = request.turns.add()
        for nugget in turn:
            one = added.nuggets.add(
                word_count=nugget.word_count, gain=nugget.gain, entity=nugget.entity or ""
            )
            for name, shares in nugget.membership.items():
                one.membership[name].shares.extend(shares)
    for target in conversation.options.targets:
        request.attributes[target.attribute].gold.shares.extend(target.shares)
        request.attributes[target.attribute].divergence = cast(
            "evaluator_pb.AttributeTarget.Divergence.ValueType", target.divergence
        )
    return request


def _report(conversation: Conversation, measured: Measured) -> pb.ConversationReport:
    standing = measured.standing
    fairness = cast(evaluator_pb.EvaluateConversationResponse, measured.fairness)
    report = pb.ConversationReport(
        so_far=fairness, num_ungrouped=standing.num_ungrouped, num_words=standing.num_words
    )
    if conversation.relevance is not None:
        report.turn_relevance = max(0.0, fairness.relevance - conversation.relevance)
    similarities = [one.similarity[-1] for one in fairness.attributes.values() if one.similarity]
    if similarities and not any(map(math.isnan, similarities)):
        report.turn_group_fairness = sum(similarities) / len(similarities)
    nuggets = standing.nuggets[-1]
    for source, nugget, repeated in zip(standing.sources[-1], nuggets, standing.repeated(), strict=True):
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
    for at, group in enumerate(groups):
        checks.text(f"{field}.groups[{at}]", group, max_bytes=_MAX_GROUP_BYTES)
        if group in groups[:at]:
            raise InvalidField(f"{field}.groups[{at}]", f"is there twice: {group!r}")
    shares = tuple(message.shares) or (1 / len(groups),) * len(groups)
    if len(shares) != len(groups):
        raise InvalidField(
            f"{field}.shares", f"must be as many as groups, {len(groups)}, or none; has {len(shares)}"
        )
    for at, share in enumerate(shares):
        checks.between(f"{field}.shares[{at}]", share, 0, 1)
    if abs(sum(shares) - 1) > _SUM_SLACK:
        raise InvalidField(f"{field}.shares", f"must sum to 1, sum to {sum(shares):g}")
    kinds = evaluator_pb.AttributeTarget.Divergence
    if message.divergence not in kinds.values():
        raise InvalidField(f"{field}.divergence", f"must be one of {', '.join(kinds.keys())}")
    divergence = message.divergence or evaluator_pb.AttributeTarget.DIVERGENCE_JSD
    return Target(attribute, groups, shares, divergence)
