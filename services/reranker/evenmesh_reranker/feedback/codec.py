"""Convert between messages of the feedback service and its domain, and check every bound of the proto."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.unknown_fields import UnknownFieldSet

from evenmesh.common.v1 import common_pb2
from evenmesh.reranker.v1 import feedback_service_pb2 as pb
from evenmesh.wire import checks
from evenmesh.wire.errors import InvalidField, MeshError
from evenmesh_kit.rpc.statuses import item_error
from evenmesh_kit.security import agents
from evenmesh_reranker.codec import MAX_AGENT_BYTES, decode_agent
from evenmesh_reranker.domain import Agent, AllAgents, LearnedModel, Scope
from evenmesh_reranker.feedback.domain import (
    AgentSummary,
    Feedback,
    Flag,
    Outcome,
    RecordStatus,
    StoredFeedback,
)
from evenmesh_reranker.feedback.training import State, Training

MAX_ITEMS: Final = 1000
"""Most items of a batch, and of a part of an export."""
MAX_RANKING: Final = 1000
"""Most passages of a ranking."""
MAX_RANKED: Final = 200_000
"""Most passages of all rankings of a batch."""
MAX_ID_BYTES: Final = 128
"""Largest idempotency id, and name of a version. Bytes."""
MAX_DESCRIPTION_BYTES: Final = 1024
"""Longest description of an agent. Bytes."""
MAX_TRAININGS: Final = 1000
"""Most trainings in one reply."""

_DEFAULT_PAGE: Final = 100
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def decode_batch(message: pb.RecordFeedbackRequest, tenant: str) -> list[Feedback | MeshError]:
    """Return the items of a tenant's batch, each as itself or as its error, with their digests.

    Raises:
        InvalidField: the number of items, or of passages in their rankings, is out of its bounds.
        PermissionDenied: an item is of an agent that the caller may not act as; none is stored then.
    """
    count = len(message.feedback)
    if not 1 <= count <= MAX_ITEMS:
        raise InvalidField("feedback", f"must be 1 to {MAX_ITEMS} items, has {count}")
    ranked = sum(len(one.ranking) for one in message.feedback)
    if ranked > MAX_RANKED:
        raise InvalidField(
            "feedback",
            f"rankings must have at most {MAX_RANKED} passages together, have {ranked}: send less at once",
        )
    items = [_item(one, tenant) for one in message.feedback]
    for at, item in enumerate(items):
        if isinstance(item, Feedback):
            agents.check(item.agent.task_id, item.agent.model_id, f"feedback[{at}].agent")
            # Computed once, here: long rankings take too long for the event loop.
            _ = item.digest, item.judged, item.query_key, item.size
    return items


def encode_outcomes(
    message: pb.RecordFeedbackRequest, outcomes: Sequence[Outcome | MeshError]
) -> pb.RecordFeedbackResponse:
    """Return one result per item, in order."""
    response = pb.RecordFeedbackResponse()
    for one, outcome in zip(message.feedback, outcomes, strict=True):
        result = response.results.add(id=one.id[: 2 * MAX_ID_BYTES])
        if isinstance(outcome, MeshError):
            result.error.CopyFrom(item_error(outcome))
        else:
            result.duplicate = outcome.status is RecordStatus.DUPLICATE
            result.flagged = outcome.flag is not Flag.NONE
    return response


def decode_export(message: pb.ExportFeedbackRequest, tenant: str) -> tuple[Scope, int]:
    """Return which feedback to stream, and since when in microseconds since 1970.

    Raises:
        InvalidField: a field is out of its bounds.
        PermissionDenied: the caller may not read that of this agent, or of all.
    """
    try:
        since_us = message.since.ToMicroseconds() if message.HasField("since") else 0
    except ValueError:
        raise InvalidField("since", "must be a time in the years 1 to 9999") from None
    return decode_scope(message, tenant, every=True), max(0, since_us)


def encode_export(page: Sequence[StoredFeedback]) -> pb.ExportFeedbackResponse:
    """Return a part of an export."""
    response = pb.ExportFeedbackResponse()
    for stored in page:
        one = stored.feedback
        response.feedback.add(
            feedback=pb.Feedback(
                id=one.id,
                query=one.query,
                passage_id=one.passage_id,
                agent=_agent(one.agent),
                usefulness=one.usefulness,
                model_version=one.model_version,
                collection=one.collection,
                ranking=one.ranking,
            ),
            recorded_at=_timestamp(stored.recorded_at_us),
            flag=_flag(stored.flag),
            sequence=stored.number,
        )
    return response


def decode_scope(
    message: pb.ExportFeedbackRequest
    | pb.ListModelsRequest
    | pb.RollbackModelRequest
    | pb.GetTrainingStatusRequest,
    tenant: str,
    *,
    every: bool = False,
) -> Scope:
    """Return the scope that a request names: one agent of the tenant, or all.

    Args:
        message: the request.
        tenant: whose agents.
        every: whether a request without an agent acts on each of them.

    Raises:
        InvalidField: an id is too long.
        PermissionDenied: the caller is bound to other agents than that, or than all where ``every``.
    """
    if message.HasField("agent"):
        return decode_agent("agent", message.agent, tenant)
    if every:
        agents.check_all()
    return AllAgents(tenant)


def decode_registration(message: pb.RegisterAgentRequest, tenant: str) -> tuple[Agent, str]:
    """Return the agent to register and its description.

    Raises:
        InvalidField: a field is out of its bounds.
        PermissionDenied: the caller is bound to other agents.
    """
    agent = message.agent
    task_id = _plain("agent.task_id", agent.task_id, MAX_AGENT_BYTES)
    model_id = _plain("agent.model_id", agent.model_id, MAX_AGENT_BYTES)
    agents.check(task_id, model_id)
    if "\x00" in message.description:
        raise InvalidField("description", "must hold no NUL")
    description = checks.at_most("description", message.description, MAX_DESCRIPTION_BYTES)
    return Agent(task_id, model_id, tenant), description


def decode_deletion(message: pb.DeleteAgentRequest, tenant: str) -> Agent:
    """Return the agent to delete.

    Raises:
        InvalidField: no agent is named, or an id is too long.
        PermissionDenied: the caller is bound to other agents.
    """
    agent = decode_agent("agent", message.agent, tenant)
    if not (agent.task_id or agent.model_id):
        raise InvalidField("agent", "must have a task or a model")
    return agent


def encode_agent(summary: AgentSummary, *, known: bool) -> pb.AgentSummary:
    """Return an agent and the amount of its feedback."""
    message = pb.AgentSummary(
        agent=_agent(summary.agent),
        description=summary.description,
        known_to_model=known,
        num_feedback=summary.stored,
        num_flagged=summary.flagged,
        num_today=summary.today,
        mean_usefulness=summary.mean_usefulness,
    )
    if summary.registered_at_us is not None:
        message.registered_at.FromMicroseconds(summary.registered_at_us)
    if summary.last_feedback_at_us is not None:
        message.last_feedback_at.FromMicroseconds(summary.last_feedback_at_us)
    return message


def page_token(number: int, tenant: str) -> str:
    """Return the token of the page that begins after ``number`` agents of a tenant."""
    return f"{number}-{hashlib.blake2b(tenant.encode(), digest_size=8).hexdigest()}"


def decode_page(message: pb.ListAgentsRequest, tenant: str) -> tuple[int, int]:
    """Return how many of the tenant's agents come before the page, and the most agents on it.

    Raises:
        InvalidField: a field is out of its bounds, or the token is of another tenant.
    """
    size = checks.between("page_size", message.page_size, 0, 1000) or _DEFAULT_PAGE
    token = message.page_token
    number = token.partition("-")[0]
    known = re.fullmatch(r"[0-9]{1,9}", number) and token == page_token(int(number), tenant)
    if token and not known:
        raise InvalidField("page_token", "must be the next_page_token of the page before, or empty")
    return int(number or 0), size


def decode_version(value: str) -> str:
    """Return the name of a version.

    Raises:
        InvalidField: the name is out of its bounds.
    """
    return _plain("version", value, MAX_ID_BYTES)


def encode_model(model: LearnedModel) -> pb.RerankerModel:
    """Return a model version as a message."""
    message = pb.RerankerModel(
        version=model.version,
        serving=model.serving,
        provenance=model.provenance,
        parent_version=model.parent_version,
        metrics=model.metrics,
        agent=None if model.agent is None else _agent(model.agent),
        kind=pb.RerankerModel.KIND_ADAPTER if model.base_version else pb.RerankerModel.KIND_FULL,
        base_version=model.base_version,
        size_bytes=model.size_bytes,
        agent_tokens=model.agent_tokens,
    )
    message.created_at.FromDatetime(model.created_at)
    return message


def encode_trainings(trainings: Sequence[Training], now_us: int) -> pb.GetTrainingStatusResponse:
    """Return the state of all training, and of each training.

    Feedback waits for the training for all agents, if there is one, and otherwise for that of its agent.
    """
    order = {State.RUNNING: 0, State.FAILED: 1, State.IDLE: 2}
    states = [(one, *one.state(now_us)) for one in trainings]
    states.sort(key=lambda one: (order[one[1]], -one[0].pending))
    for_all = [one for one in trainings if one.report.agent is None]
    waiting = sum(one.pending for one in for_all or trainings)
    first, state, message = states[0] if states else (None, State.IDLE, "")
    if first is None or state is State.IDLE:
        items = "1 item of feedback waits" if waiting == 1 else f"{waiting} items of feedback wait"
        message = f"nothing is being trained; {items}"
        if candidates := sum(bool(one.report.candidate_version) for one in trainings):
            message += f", and {candidates} candidate{'s' if candidates > 1 else ''} to be promoted"
    elif first.report.agent is not None:
        message = f"{first.report.agent.task_id}/{first.report.agent.model_id}: {message}"
    response = pb.GetTrainingStatusResponse(
        state=_state(state),
        pending_feedback=waiting,
        progress=first.report.progress if first is not None and state is State.RUNNING else 0.0,
        message=message,
    )
    for one, its_state, its_message in states[:MAX_TRAININGS]:
        report = one.report
        entry = response.trainings.add(
            agent=None if report.agent is None else _agent(report.agent),
            state=_state(its_state),
            progress=report.progress if its_state is State.RUNNING else 0.0,
            message=its_message,
            pending_feedback=one.pending,
            pending_queries=one.pending_queries,
            candidate_version=report.candidate_version,
        )
        if one.updated_at_us is not None:
            entry.updated_at.FromMicroseconds(one.updated_at_us)
    return response


def _item(message: pb.Feedback, tenant: str) -> Feedback | MeshError:
    try:
        if len(UnknownFieldSet(message)) or len(UnknownFieldSet(message.agent)):
            # Storing the item without them would change what a newer client sent.
            raise MeshError(
                grpc.StatusCode.INVALID_ARGUMENT,
                "UNKNOWN_FIELD",
                "has fields that this version does not know",
            )
        agent = Agent(
            _plain("agent.task_id", message.agent.task_id, MAX_AGENT_BYTES, empty=True),
            _plain("agent.model_id", message.agent.model_id, MAX_AGENT_BYTES, empty=True),
            tenant,
        )
        if not (agent.task_id or agent.model_id):
            raise InvalidField("agent", "must have a task or a model: anonymous feedback cannot be used")
        query = checks.text("query", message.query)
        if "\x00" in query:
            raise InvalidField("query", "must hold no NUL")
        passage_id = _plain("passage_id", message.passage_id, checks.MAX_ID_BYTES)
        if not message.HasField("usefulness"):
            raise InvalidField("usefulness", "must be set; 0 says that the passage was useless")
        return Feedback(
            id=_plain("id", message.id, MAX_ID_BYTES),
            query=query,
            passage_id=passage_id,
            agent=agent,
            usefulness=checks.between("usefulness", message.usefulness, 0.0, 1.0),
            model_version=_plain("model_version", message.model_version, MAX_ID_BYTES, empty=True),
            collection=checks.name("collection", message.collection) if message.collection else "",
            ranking=_ranking(message.ranking, passage_id),
        )
    except MeshError as error:
        return error


def _ranking(ids: Sequence[str], passage_id: str) -> tuple[str, ...]:
    if len(ids) > MAX_RANKING:
        raise InvalidField("ranking", f"must be at most {MAX_RANKING} passages, has {len(ids)}")
    for at, one in enumerate(ids):
        _plain(f"ranking[{at}]", one, checks.MAX_ID_BYTES)
    if len(set(ids)) < len(ids):
        raise InvalidField("ranking", "must not have a passage twice")
    if ids and passage_id not in ids:
        raise InvalidField("passage_id", "must be one of the ranking's")
    return tuple(ids)


def _plain(field: str, value: str, max_bytes: int, *, empty: bool = False) -> str:
    """Return text after checking its size and that it has no control characters."""
    size = len(value.encode())
    if size > max_bytes or not (size or empty):
        raise InvalidField(field, f"must be {0 if empty else 1} to {max_bytes} bytes, has {size}")
    if _CONTROL.search(value):
        raise InvalidField(field, "must hold no control characters")
    return value


def _agent(agent: Agent) -> common_pb2.Agent:
    return common_pb2.Agent(task_id=agent.task_id, model_id=agent.model_id)


def _timestamp(us: int) -> Timestamp:
    message = Timestamp()
    message.FromMicroseconds(us)
    return message


def _flag(flag: Flag) -> pb.FeedbackFlag.ValueType:
    name = "UNSPECIFIED" if flag is Flag.NONE else flag.name
    return pb.FeedbackFlag.Value(f"FEEDBACK_FLAG_{name}")


def _state(state: State) -> pb.GetTrainingStatusResponse.State.ValueType:
    return pb.GetTrainingStatusResponse.State.Value(f"STATE_{state.name}")
