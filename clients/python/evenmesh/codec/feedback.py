"""Map feedback, agents, model versions and training to messages and back."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from evenmesh.codec.mapping import decode, encode
from evenmesh.codec.values import flag
from evenmesh.common.v1 import common_pb2
from evenmesh.reranker.v1 import feedback_service_pb2 as pb
from evenmesh.types.feedback import BATCH, Feedback, FeedbackResult
from evenmesh.types.request import Agent
from evenmesh.wire.errors import InvalidField, from_item_error
from evenmesh.wire.methods import facts_of

_MOST_BYTES: Final = facts_of("/evenmesh.reranker.v1.FeedbackService/RecordFeedback").max_request_bytes
_MOST_RANKED: Final = 200_000
# The tag of a field and its size.
_AROUND_BYTES: Final = 8


def record_requests(items: Iterable[Feedback]) -> Iterator[pb.RecordFeedbackRequest]:
    """Yield the calls that record items, each as large as a call may be.

    Raises:
        InvalidField: an item is no feedback, or a value does not fit its field.
    """
    request = pb.RecordFeedbackRequest()
    size = ranked = 0
    for one in items:
        if not isinstance(one, Feedback):
            raise InvalidField("feedback", f"must be of evenmesh.Feedback, not {type(one).__name__}")
        message = encode(pb.Feedback, replace(one, id=one.key))
        more = message.ByteSize() + _AROUND_BYTES
        ranked += len(message.ranking)
        size += more
        full = len(request.feedback) == BATCH or size > _MOST_BYTES or ranked > _MOST_RANKED
        if request.feedback and full:
            yield request
            request = pb.RecordFeedbackRequest()
            size, ranked = more, len(message.ranking)
        request.feedback.append(message)
    if request.feedback:
        yield request


def result(message: pb.FeedbackResult) -> FeedbackResult:
    """Return what happened to one item."""
    error = from_item_error(message.error) if message.HasField("error") else None
    return decode(FeedbackResult, message, error=error)


def export_request(
    agent: Agent | None, since: datetime | None, *, include_flagged: bool
) -> pb.ExportFeedbackRequest:
    """Return the request for stored feedback."""
    request = pb.ExportFeedbackRequest(
        agent=agent_message(agent), include_flagged=flag("include_flagged", include_flagged)
    )
    if since is not None:
        request.since.FromDatetime(since.astimezone(UTC))
    return request


def agent_message(agent: Agent | None) -> common_pb2.Agent | None:
    """Return the message of an agent; None for None.

    Raises:
        InvalidField: an id is not text.
    """
    return None if agent is None else encode(common_pb2.Agent, agent, "agent")
