"""The parts of the clients that talk to what learns: feedback, agents, model versions, training."""

# ruff: noqa: ASYNC109 - a timeout is gRPC's deadline here, sent along with the call

from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import datetime
from typing import Any, Final, TypeVar

import grpc

from meshkit.errors import MeshError
from ragmesh import feedback_codec as codec
from ragmesh.feedback import (
    BATCH,
    AgentSummary,
    Feedback,
    FeedbackResult,
    ModelVersion,
    Recorded,
    StoredFeedback,
    TrainingStatus,
)
from ragmesh.request import Agent
from ragmesh.reranker.v1 import feedback_service_pb2 as pb
from ragmesh.reranker.v1 import feedback_service_pb2_grpc as rpc
from ragmesh.texts import text

IDEMPOTENT: Final = ("RecordFeedback", "RegisterAgent", "ListAgents", "ListModels", "GetTrainingStatus")
"""Methods of the feedback service that may be sent again."""

EXPORT_TIMEOUT_S: Final = 3_600.0
PROMOTE_TIMEOUT_S: Final = 600.0
"""A model is read from disk and compared with its manifest before it is served."""

_PAGE: Final = 1_000
_SERVICE: Final = "reranker"
_T = TypeVar("_T")


class LearningCalls:
    """Of :class:`ragmesh.Client`: feedback, agents, model versions and training."""

    _channels: dict[str, grpc.Channel]
    _timeout: float

    def record_feedback(
        self, feedback: Feedback | Iterable[Feedback], *, timeout: float | None = None
    ) -> Recorded:
        """Tells the reranker how useful passages were; what is stored is so for good when this returns.

        Sent in calls of at most 1,000 items. Each item is stored, was stored before, or has an error of its
        own in the result. If a call fails as a whole, all of it may be sent again: ids count once.

        Args:
            feedback: one item or many.
            timeout: seconds for each call.

        Raises:
            MeshError: a call failed; what calls before it told is stored.
        """
        stub = rpc.FeedbackServiceStub(self._channels[_SERVICE])
        results: list[FeedbackResult] = []
        for batch in _batches(feedback):
            reply = self._call(_SERVICE, stub.RecordFeedback, codec.record_request(batch), timeout)
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
        """The feedback that is stored, in the order it was, as it arrives.

        Closing the iterator ends the call.

        Args:
            agent: only that of one agent.
            since: only what was stored at this time or later; with a time zone.
            include_flagged: also what is kept out of training.
            timeout: seconds for all of it.
        """
        stub = rpc.FeedbackServiceStub(self._channels[_SERVICE])
        request = codec.export_request(agent, since, include_flagged=include_flagged)
        call = stub.ExportFeedback(request, timeout=timeout)
        try:
            for part in call:
                yield from map(codec.stored, part.feedback)
        except grpc.RpcError as exc:
            raise self._error(exc, _SERVICE) from exc
        finally:
            call.cancel()

    def register_agent(
        self, agent: Agent, description: str = "", *, timeout: float | None = None
    ) -> AgentSummary:
        """Registers an agent, for which models then have tokens of its own; or changes its description."""
        stub = rpc.FeedbackServiceStub(self._channels[_SERVICE])
        request = codec.registration(agent, description)
        return codec.agent_summary(self._call(_SERVICE, stub.RegisterAgent, request, timeout).agent)

    def agents(self, *, timeout: float | None = None) -> list[AgentSummary]:
        """The agents that are registered or gave feedback, in the order they were first heard of."""
        stub = rpc.FeedbackServiceStub(self._channels[_SERVICE])
        found: list[AgentSummary] = []
        token = ""
        while True:
            request = pb.ListAgentsRequest(page_size=_PAGE, page_token=token)
            reply = self._call(_SERVICE, stub.ListAgents, request, timeout)
            found.extend(map(codec.agent_summary, reply.agents))
            token = reply.next_page_token
            if not token:
                return found

    def models(self, *, agent: Agent | None = None, timeout: float | None = None) -> list[ModelVersion]:
        """The versions of the learned reranker, the served ones first; or an agent's own."""
        stub = rpc.FeedbackServiceStub(self._channels[_SERVICE])
        request = pb.ListModelsRequest(agent=codec.agent_message(agent))
        return [
            codec.model_version(one) for one in self._call(_SERVICE, stub.ListModels, request, timeout).models
        ]

    def promote_model(
        self, version: str, *, merge_agent_tokens: bool = False, timeout: float = PROMOTE_TIMEOUT_S
    ) -> ModelVersion:
        """Serves a version to its agent or to all; until it is checked and loaded, the one before serves.

        Args:
            version: its name.
            merge_agent_tokens: of a version for all, give it the tokens of agents that the served one has and
                it lacks, and serve what comes of that.
            timeout: seconds for reading and checking it.
        """
        stub = rpc.FeedbackServiceStub(self._channels[_SERVICE])
        request = pb.PromoteModelRequest(
            version=text("version", version), merge_agent_tokens=merge_agent_tokens
        )
        return codec.model_version(self._call(_SERVICE, stub.PromoteModel, request, timeout).model)

    def rollback_model(
        self, *, agent: Agent | None = None, timeout: float = PROMOTE_TIMEOUT_S
    ) -> ModelVersion:
        """Serves what was served before, to all or to one agent."""
        stub = rpc.FeedbackServiceStub(self._channels[_SERVICE])
        request = pb.RollbackModelRequest(agent=codec.agent_message(agent))
        return codec.model_version(self._call(_SERVICE, stub.RollbackModel, request, timeout).model)

    def training_status(self, *, agent: Agent | None = None, timeout: float | None = None) -> TrainingStatus:
        """What trainers are doing, and what waits for them."""
        stub = rpc.FeedbackServiceStub(self._channels[_SERVICE])
        request = pb.GetTrainingStatusRequest(agent=codec.agent_message(agent))
        return codec.training_status(self._call(_SERVICE, stub.GetTrainingStatus, request, timeout))

    def _call(
        self,
        service: str,
        method: "grpc.UnaryUnaryMultiCallable[Any, _T]",
        request: object,
        timeout: float | None,
    ) -> _T:
        try:
            return method(request, timeout=timeout or self._timeout)
        except grpc.RpcError as exc:
            raise self._error(exc, service) from exc

    def _error(self, exc: grpc.RpcError, service: str) -> MeshError:
        raise NotImplementedError


class AsyncLearningCalls:
    """Of :class:`ragmesh.AsyncClient`: the same, awaited."""

    _channels: dict[str, grpc.aio.Channel]
    _timeout: float

    async def record_feedback(
        self, feedback: Feedback | Iterable[Feedback], *, timeout: float | None = None
    ) -> Recorded:
        """Tells the reranker how useful passages were; as :meth:`ragmesh.Client.record_feedback`."""
        stub = rpc.FeedbackServiceStub(self._channels[_SERVICE])
        results: list[FeedbackResult] = []
        for batch in _batches(feedback):
            reply = await self._call(_SERVICE, stub.RecordFeedback, codec.record_request(batch), timeout)
            results.extend(codec.result(one) for one in reply.results)
        return Recorded(tuple(results))

    async def export_feedback(
        self,
        *,
        agent: Agent | None = None,
        since: datetime | None = None,
        include_flagged: bool = False,
        timeout: float = EXPORT_TIMEOUT_S,
    ) -> AsyncIterator[StoredFeedback]:
        """The feedback that is stored; as :meth:`ragmesh.Client.export_feedback`."""
        stub = rpc.FeedbackServiceStub(self._channels[_SERVICE])
        request = codec.export_request(agent, since, include_flagged=include_flagged)
        call = stub.ExportFeedback(request, timeout=timeout)
        try:
            async for part in call:
                for one in part.feedback:
                    yield codec.stored(one)
        except grpc.RpcError as exc:
            raise self._error(exc, _SERVICE) from exc
        finally:
            call.cancel()

    async def register_agent(
        self, agent: Agent, description: str = "", *, timeout: float | None = None
    ) -> AgentSummary:
        """Registers an agent; as :meth:`ragmesh.Client.register_agent`."""
        stub = rpc.FeedbackServiceStub(self._channels[_SERVICE])
        request = codec.registration(agent, description)
        return codec.agent_summary((await self._call(_SERVICE, stub.RegisterAgent, request, timeout)).agent)

    async def agents(self, *, timeout: float | None = None) -> list[AgentSummary]:
        """The agents that are registered or gave feedback, in the order they were first heard of."""
        stub = rpc.FeedbackServiceStub(self._channels[_SERVICE])
        found: list[AgentSummary] = []
        token = ""
        while True:
            request = pb.ListAgentsRequest(page_size=_PAGE, page_token=token)
            reply = await self._call(_SERVICE, stub.ListAgents, request, timeout)
            found.extend(map(codec.agent_summary, reply.agents))
            token = reply.next_page_token
            if not token:
                return found

    async def models(self, *, agent: Agent | None = None, timeout: float | None = None) -> list[ModelVersion]:
        """The versions of the learned reranker, the served ones first; or an agent's own."""
        stub = rpc.FeedbackServiceStub(self._channels[_SERVICE])
        request = pb.ListModelsRequest(agent=codec.agent_message(agent))
        reply = await self._call(_SERVICE, stub.ListModels, request, timeout)
        return [codec.model_version(one) for one in reply.models]

    async def promote_model(
        self, version: str, *, merge_agent_tokens: bool = False, timeout: float = PROMOTE_TIMEOUT_S
    ) -> ModelVersion:
        """Serves a version; as :meth:`ragmesh.Client.promote_model`."""
        stub = rpc.FeedbackServiceStub(self._channels[_SERVICE])
        request = pb.PromoteModelRequest(
            version=text("version", version), merge_agent_tokens=merge_agent_tokens
        )
        return codec.model_version((await self._call(_SERVICE, stub.PromoteModel, request, timeout)).model)

    async def rollback_model(
        self, *, agent: Agent | None = None, timeout: float = PROMOTE_TIMEOUT_S
    ) -> ModelVersion:
        """Serves what was served before, to all or to one agent."""
        stub = rpc.FeedbackServiceStub(self._channels[_SERVICE])
        request = pb.RollbackModelRequest(agent=codec.agent_message(agent))
        return codec.model_version((await self._call(_SERVICE, stub.RollbackModel, request, timeout)).model)

    async def training_status(
        self, *, agent: Agent | None = None, timeout: float | None = None
    ) -> TrainingStatus:
        """What trainers are doing, and what waits for them."""
        stub = rpc.FeedbackServiceStub(self._channels[_SERVICE])
        request = pb.GetTrainingStatusRequest(agent=codec.agent_message(agent))
        return codec.training_status(await self._call(_SERVICE, stub.GetTrainingStatus, request, timeout))

    async def _call(
        self,
        service: str,
        method: "grpc.aio.UnaryUnaryMultiCallable[Any, _T]",
        request: object,
        timeout: float | None,
    ) -> _T:
        try:
            return await method(request, timeout=timeout or self._timeout)
        except grpc.RpcError as exc:
            raise self._error(exc, service) from exc

    def _error(self, exc: grpc.RpcError, service: str) -> MeshError:
        raise NotImplementedError


def _batches(feedback: Feedback | Iterable[Feedback]) -> Iterator[list[Feedback]]:
    batch: list[Feedback] = []
    for one in (feedback,) if isinstance(feedback, Feedback) else feedback:
        batch.append(one)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
