"""Conversations from the wire and to it."""

import math
from typing import Final

from ragmesh import codec
from ragmesh.conversation import (
    CitedEntity,
    ConversationOptions,
    ConversationReport,
    GroupFairness,
    LookedFor,
    TurnEvent,
)
from ragmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb2
from ragmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb2
from ragmesh.request import choice, whole
from ragmesh.texts import text

_HISTORIES: Final = {
    "none": orchestrator_pb2.ConversationOptions.HISTORY_NONE,
    "words": orchestrator_pb2.ConversationOptions.HISTORY_WORDS,
    "rewrite": orchestrator_pb2.ConversationOptions.HISTORY_REWRITE,
}
_DIVERGENCES: Final = {
    "jsd": evaluator_pb2.AttributeTarget.DIVERGENCE_JSD,
    "rnod": evaluator_pb2.AttributeTarget.DIVERGENCE_RNOD,
    "nmd": evaluator_pb2.AttributeTarget.DIVERGENCE_NMD,
}


def options_message(options: ConversationOptions) -> orchestrator_pb2.ConversationOptions:
    """The wire form of how a conversation goes.

    Raises:
        InvalidField: a value that does not fit its field.
        TypeError: an option that does not exist.
    """
    if unknown := options.keys() - ConversationOptions.__annotations__.keys():
        raise TypeError(f"converse() has no option {', '.join(sorted(unknown))}")
    kinds = evaluator_pb2.EvaluateConversationRequest
    message = orchestrator_pb2.ConversationOptions(
        history=choice("options.history", options.get("history", "words"), _HISTORIES),
        history_turns=whole("options.history_turns", options.get("history_turns")),
        template=text("options.template", options.get("template")),
        patience=whole("options.patience", options.get("patience")),
        relevance_weight=options.get("relevance_weight"),
        method=kinds.METHOD_CUMULATIVE if options.get("cumulative") else kinds.METHOD_INDEPENDENT,
        irrelevant_turns=kinds.IRRELEVANT_TURNS_UNIFORM
        if options.get("uniform_turns")
        else kinds.IRRELEVANT_TURNS_IGNORE,
        entity_attribute=text("options.entity_attribute", options.get("entity_attribute")),
    )
    for place, target in enumerate(options.get("targets") or ()):
        field = f"options.targets[{place}]"
        message.targets.add(
            attribute=text(f"{field}.attribute", target.attribute),
            groups=[text(f"{field}.groups", one) for one in target.groups],
            shares=target.shares or (),
            divergence=choice(f"{field}.divergence", target.divergence, _DIVERGENCES),
        )
    return message


def event(message: orchestrator_pb2.ConverseResponse) -> TurnEvent | None:
    """The event of a message; None for a kind this version does not know."""
    if message.HasField("report"):
        return _report(message.report)
    if message.looked_for:
        return LookedFor(message.looked_for)
    return codec.event(message.event)


def _report(message: orchestrator_pb2.ConversationReport) -> ConversationReport:
    so_far = message.so_far
    return ConversationReport(
        relevance=so_far.relevance,
        group_fairness=so_far.group_fairness,
        combined=so_far.combined,
        turn_relevance=message.turn_relevance if message.HasField("turn_relevance") else None,
        turn_group_fairness=message.turn_group_fairness if message.HasField("turn_group_fairness") else None,
        by_attribute={
            name: GroupFairness(
                found.group_fairness,
                tuple(None if math.isnan(value) else value for value in found.similarity),
                tuple(tuple(one.shares) or None for one in found.achieved),
            )
            for name, found in sorted(so_far.attributes.items())
        },
        entities=tuple(
            CitedEntity(
                passage_id=one.passage_id,
                entity=one.entity,
                level=one.level,
                repeated=one.repeated,
                word_count=one.word_count,
                membership={name: tuple(part.shares) for name, part in sorted(one.membership.items())},
            )
            for one in message.entities
        ),
        num_ungrouped=message.num_ungrouped,
        num_words=message.num_words,
    )
