# Generated from _async by generate_sync.py (make sdk). Do not edit.
"""Calls of the reranker: feedback, agents, model versions, training."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from evenmesh._sync.calls import Calls
from evenmesh.codec import feedback as codec
from evenmesh.codec.mapping import decode
from evenmesh.codec.values import flag, text
from evenmesh.reranker.v1 import feedback_service_pb2 as pb
from evenmesh.types.feedback import (
    AgentSummary,
    DeletedAgent,
    Feedback,
    FeedbackResult,
    ModelVersion,
    Recorded,
    StoredFeedback,
    TrainingStatus,
)
from evenmesh.types.request import Agent

EXPORT_TIMEOUT_S: Final = 3_600.0
DELETE_AGENT_TIMEOUT_S: Final = 600.0
PROMOTE_TIMEOUT_S: Final = 600.0
"""A model is read from disk and compared with its manifest before it is served."""


class FeedbackCalls(Calls):
    """Record feedback, manage agents and model versions."""

    def record_feedback(
        self, feedback: Feedback | Iterable[Feedback], *, timeout: float | None = None
    ) -> Recorded:
        """Record how useful passages were; stored items are durable when this returns.

        Send items in calls of at most 1,000, and of the bytes and ranked passages that a call may have. The
        result says of each item whether it is stored now, was stored before, or has an error. If a call fails
        as a whole, you may send all items again: ids count once.

        Args:
            feedback: one item or many.
            timeout: seconds for each call.

        Raises:
            MeshError: a call failed; the items of earlier calls are stored.
        """
        items = (feedback,) if isinstance(feedback, Feedback) else feedback
        results: list[FeedbackResult] = []
        for request in codec.record_requests(items):
            reply = self._call("reranker", self._feedback.RecordFeedback, request, timeout)
            results.extend(codec.result(one) for one in reply.results)
        return Recorded(tuple(results))

    def export_feedback(
        self,
        *,
        agent: Agent | None = None,
        since: datetime | None = None,
        include_flagged: bool = False,
        timeout: float = EXPORT_TIMEOUT_S,
    ) -> Iterator[StoredFeedback]:
        """Yield the stored feedback as it arrives, oldest first; closing the iterator ends the call.

        Args:
            agent: only the feedback of one agent.
            since: only feedback stored at this time or later; with a time zone.
            include_flagged: also feedback that is not used for training.
            timeout: seconds for the whole export.
        """
        request = codec.export_request(agent, since, include_flagged=include_flagged)
        return self._stream(
            "reranker",
            self._feedback.ExportFeedback,
            request,
            lambda message: (decode(StoredFeedback, one) for one in message.feedback),
            timeout,
        )

    def register_agent(
        self, agent: Agent, description: str = "", *, timeout: float | None = None
    ) -> AgentSummary:
        """Register an agent, or change its description; models then have separate tokens for it."""
        request = pb.RegisterAgentRequest(
            agent=codec.agent_message(agent), description=text("description", description)
        )
        reply = self._call("reranker", self._feedback.RegisterAgent, request, timeout)
        return decode(AgentSummary, reply.agent)

    def delete_agent(self, agent: Agent, *, timeout: float = DELETE_AGENT_TIMEOUT_S) -> DeletedAgent:
        """Delete an agent with its feedback and its own model versions; deleting it again deletes nothing.

        Then it is ranked by the model of all agents. If the call fails, call it again: it goes on where it
        ended.

        Args:
            agent: the agent, not both ids empty.
            timeout: seconds; the feedback is deleted a thousand items at a time.
        """
        request = pb.DeleteAgentRequest(agent=codec.agent_message(agent))
        reply = self._call("reranker", self._feedback.DeleteAgent, request, timeout)
        return decode(DeletedAgent, reply)

    def agents(self, *, timeout: float | None = None) -> list[AgentSummary]:
        """Return the agents that are registered or gave feedback, in the order they first appeared."""
        listed = self._feedback.ListAgents
        found = self._list("reranker", listed, pb.ListAgentsRequest, "agents", timeout=timeout)
        return [decode(AgentSummary, one) for one in found]

    def models(self, *, agent: Agent | None = None, timeout: float | None = None) -> list[ModelVersion]:
        """Return the versions of the learned reranker, the served ones first; or an agent's own."""
        request = pb.ListModelsRequest(agent=codec.agent_message(agent))
        reply = self._call("reranker", self._feedback.ListModels, request, timeout)
        return [decode(ModelVersion, one) for one in reply.models]

    def promote_model(
        self, version: str, *, merge_agent_tokens: bool = False, timeout: float = PROMOTE_TIMEOUT_S
    ) -> ModelVersion:
        """Serve a version to its agent or to all; the one before serves until this one is checked and loaded.

        Args:
            version: its name.
            merge_agent_tokens: for a version that serves all: add the agents' tokens that the served version
                has and this one lacks, and serve the result.
            timeout: seconds for reading and checking it.
        """
        request = pb.PromoteModelRequest(
            version=text("version", version),
            merge_agent_tokens=flag("merge_agent_tokens", merge_agent_tokens),
        )
        reply = self._call("reranker", self._feedback.PromoteModel, request, timeout)
        return decode(ModelVersion, reply.model)

    def rollback_model(
        self, *, agent: Agent | None = None, timeout: float = PROMOTE_TIMEOUT_S
    ) -> ModelVersion:
        """Serve the version that was served before, to all or to one agent."""
        request = pb.RollbackModelRequest(agent=codec.agent_message(agent))
        reply = self._call("reranker", self._feedback.RollbackModel, request, timeout)
        return decode(ModelVersion, reply.model)

    def training_status(self, *, agent: Agent | None = None, timeout: float | None = None) -> TrainingStatus:
        """Return what trainers do, and how much feedback waits for them."""
        request = pb.GetTrainingStatusRequest(agent=codec.agent_message(agent))
        reply = self._call("reranker", self._feedback.GetTrainingStatus, request, timeout)
        return decode(TrainingStatus, reply)
