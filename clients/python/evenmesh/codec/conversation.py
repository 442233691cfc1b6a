"""Map conversations to messages and back."""

from evenmesh.codec import messages as codec
from evenmesh.codec.mapping import decode, encode
from evenmesh.codec.values import flag
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb2
from evenmesh.types.conversation import (
    ConversationOptions,
    ConversationReport,
    GroupFairness,
    LookedFor,
    TurnEvent,
)


def options_message(options: ConversationOptions) -> orchestrator_pb2.ConversationOptions:
    """Return the message of a conversation's options.

    Raises:
        InvalidField: a value does not fit its field.
        TypeError: an option does not exist.
    """
    if unknown := options.keys() - ConversationOptions.__annotations__.keys():
        raise TypeError(f"converse() has no option {', '.join(sorted(unknown))}")
    values = {
        **options,
        "history": options.get("history", "words"),
        "method": "cumulative" if flag("cumulative", options.get("cumulative")) else "independent",
        "irrelevant_turns": "uniform" if flag("uniform_turns", options.get("uniform_turns")) else "ignore",
    }
    named = {name: value for name, value in values.items() if name not in ("cumulative", "uniform_turns")}
    return encode(orchestrator_pb2.ConversationOptions, named, "options")


def event(message: orchestrator_pb2.ConverseResponse) -> TurnEvent | None:
    """Return the event of a message; None for a kind that only a newer mesh sends."""
    if message.HasField("report"):
        return _report(message.report)
    if message.looked_for:
        return LookedFor(message.looked_for)
    return codec.event(message.event)


def _report(message: orchestrator_pb2.ConversationReport) -> ConversationReport:
    found = sorted(message.so_far.attributes.items())
    return decode(
        ConversationReport,
        message,
        message.so_far,
        by_attribute={name: decode(GroupFairness, one) for name, one in found},
    )
