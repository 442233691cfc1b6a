"""Options and turns of a conversation as bytes in the database."""

from __future__ import annotations

import json
from typing import Any, Final

from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh_orchestrator.conversations.codec import read_options
from evenmesh_orchestrator.conversations.conversation import TurnRecord
from evenmesh_orchestrator.conversations.options import Options
from evenmesh_orchestrator.conversations.sources import Cited

FORMAT: Final = 1
"""Version of the format of options and turns; a later one cannot be read."""


def write_options(options: Options) -> bytes:
    """Return options as the message of the contract that they were read from, serialized."""
    measure = options.measure
    message = pb.ConversationOptions(
        history=options.history,
        history_turns=options.history_turns,
        template=options.template,
        entity_attribute=options.entity_attribute,
        method=measure.method,
        irrelevant_turns=measure.irrelevant_turns,
        patience=measure.patience if measure.HasField("patience") else None,
        relevance_weight=measure.alpha if measure.HasField("alpha") else None,
    )
    for target in options.targets:
        message.targets.add(
            attribute=target.attribute,
            groups=target.groups,
            shares=target.shares,
            divergence=target.divergence,
        )
    return message.SerializeToString()


def stored_options(payload: bytes) -> Options:
    """Return options from what :func:`write_options` returned."""
    return read_options(pb.ConversationOptions.FromString(payload))


def write_turn(turn: TurnRecord) -> bytes:
    """Return a turn as JSON, in UTF-8."""
    cited = [
        {
            "id": one.passage_id,
            "title": one.title,
            "place": one.place,
            "attributes": dict(one.attributes),
            "level": one.level,
        }
        for one in turn.cited
    ]
    made = {"question": turn.question, "answer": turn.answer, "cited": cited}
    return json.dumps(made, ensure_ascii=False, separators=(",", ":")).encode()


def stored_turn(payload: bytes) -> TurnRecord:
    """Return a turn from what :func:`write_turn` returned."""
    read: dict[str, Any] = json.loads(payload)
    return TurnRecord(
        read["question"],
        read["answer"],
        tuple(
            Cited(one["id"], one["title"], one["place"], one["attributes"], one["level"])
            for one in read["cited"]
        ),
    )
