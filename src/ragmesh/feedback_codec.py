"""Feedback, agents, model versions and training, from and to the wire."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from meshkit.errors import InvalidField, from_item_error
from ragmesh.common.v1 import common_pb2
from ragmesh.feedback import (
    AgentSummary,
    Feedback,
    FeedbackResult,
    Flag,
    ModelVersion,
    StoredFeedback,
    Training,
    TrainingState,
    TrainingStatus,
)
from ragmesh.request import Agent
from ragmesh.reranker.v1 import feedback_service_pb2 as pb
from ragmesh.texts import text
from ragmesh.times import time_of

_FLAGS: Final[dict[int, Flag]] = {
    pb.FEEDBACK_FLAG_CONTRADICTION: "contradiction",
    pb.FEEDBACK_FLAG_INCONSISTENT: "inconsistent",
    pb.FEEDBACK_FLAG_CONSTANT: "constant",
}
_STATES: Final[dict[int, TrainingState]] = {
    pb.GetTrainingStatusResponse.STATE_RUNNING: "running",
    pb.GetTrainingStatusResponse.STATE_FAILED: "failed",
}


def record_request(batch: Iterable[Feedback]) -> pb.RecordFeedbackRequest:
    """A call that records a batch.

    Raises:
        InvalidField: what is no text or no number, which the wire cannot say.
    """
    return pb.RecordFeedbackRequest(feedback=[_feedback_message(one) for one in batch])


def result(message: pb.FeedbackResult) -> FeedbackResult:
    """What became of one item."""
    error = from_item_error(message.error) if message.HasField("error") else None
    return FeedbackResult(message.id, message.duplicate, message.flagged, error)


def export_request(
    agent: Agent | None, since: datetime | None, *, include_flagged: bool
) -> pb.ExportFeedbackRequest:
    """Names the feedback that is wanted."""
    request = pb.ExportFeedbackRequest(agent=agent_message(agent), include_flagged=include_flagged)
    if since is not None:
        request.since.FromDatetime(since.astimezone(UTC))
    return request


def stored(message: pb.StoredFeedback) -> StoredFeedback:
    """Feedback as it is stored."""
    one = message.feedback
    return StoredFeedback(
        feedback=Feedback(
            query=one.query,
            passage_id=one.passage_id,
            usefulness=one.usefulness,
            agent=_agent(one.agent),
            model_version=one.model_version,
            collection=one.collection,
            ranking=tuple(one.ranking),
            id=one.id,
        ),
        recorded_at=time_of(message.recorded_at),
        flag=_FLAGS.get(message.flag, ""),
        sequence=message.sequence,
    )


def agent_message(agent: Agent | None) -> common_pb2.Agent | None:
    """An agent on the wire; None for None."""
    if agent is None:
        return None
    return common_pb2.Agent(
        task_id=text("agent.task_id", agent.task_id), model_id=text("agent.model_id", agent.model_id)
    )


def registration(agent: Agent, description: str) -> pb.RegisterAgentRequest:
    """A call that registers an agent."""
    return pb.RegisterAgentRequest(agent=agent_message(agent), description=text("description", description))


def agent_summary(message: pb.AgentSummary) -> AgentSummary:
    """An agent and how much it gave."""
    return AgentSummary(
        agent=_agent(message.agent),
        registered_at=time_of(message.registered_at) if message.HasField("registered_at") else None,
        description=message.description,
        known_to_model=message.known_to_model,
        num_feedback=message.num_feedback,
        num_flagged=message.num_flagged,
        num_today=message.num_today,
        mean_usefulness=message.mean_usefulness if message.HasField("mean_usefulness") else None,
        last_feedback_at=time_of(message.last_feedback_at) if message.HasField("last_feedback_at") else None,
    )


def model_version(message: pb.RerankerModel) -> ModelVersion:
    """A model version."""
    return ModelVersion(
        version=message.version,
        serving=message.serving,
        created_at=time_of(message.created_at),
        provenance=message.provenance,
        parent_version=message.parent_version,
        metrics=dict(message.metrics),
        agent=_agent(message.agent) if message.HasField("agent") else None,
        base_version=message.base_version,
        size_bytes=message.size_bytes,
        agent_tokens=tuple(message.agent_tokens),
    )


def training_status(message: pb.GetTrainingStatusResponse) -> TrainingStatus:
    """What training is doing."""
    return TrainingStatus(
        state=_STATES.get(message.state, "idle"),
        pending_feedback=message.pending_feedback,
        progress=message.progress,
        message=message.message,
        trainings=tuple(
            Training(
                agent=_agent(one.agent) if one.HasField("agent") else None,
                state=_STATES.get(one.state, "idle"),
                progress=one.progress,
                message=one.message,
                pending_feedback=one.pending_feedback,
                pending_queries=one.pending_queries,
                candidate_version=one.candidate_version,
                updated_at=time_of(one.updated_at) if one.HasField("updated_at") else None,
            )
            for one in message.trainings
        ),
    )


def _feedback_message(one: Feedback) -> pb.Feedback:
    if isinstance(one.usefulness, bool) or not isinstance(one.usefulness, int | float):
        raise InvalidField("usefulness", f"must be a number, not {type(one.usefulness).__name__}")
    return pb.Feedback(
        id=text("id", one.key),
        query=text("query", one.query),
        passage_id=text("passage_id", one.passage_id),
        agent=agent_message(one.agent),
        usefulness=one.usefulness,
        model_version=text("model_version", one.model_version),
        collection=text("collection", one.collection),
        ranking=[text("ranking", passage) for passage in one.ranking],
    )


def _agent(message: common_pb2.Agent) -> Agent:
    return Agent(message.task_id, message.model_id)
