"""RPCs of the feedback service: decode, do, encode."""
# ruff: noqa: N802 - names and arguments are the contract's

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import grpc

from evenmesh.reranker.v1 import feedback_service_pb2 as pb
from evenmesh.reranker.v1 import feedback_service_pb2_grpc as rpc
from evenmesh.wire import deadline
from evenmesh.wire.errors import MeshError
from evenmesh_kit.admission.shares import TenantShares
from evenmesh_kit.compute.tenant_places import TenantPlaces
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_kit.security import agents
from evenmesh_kit.security import caller as callers
from evenmesh_reranker.backends.sql.agents import SqlAgentRegistry
from evenmesh_reranker.backends.sql.feedback import SqlFeedbackStore
from evenmesh_reranker.backends.sql.trainings import SqlTrainingLog
from evenmesh_reranker.domain import Agent, AllAgents
from evenmesh_reranker.feedback import codec
from evenmesh_reranker.feedback.domain import Outcome
from evenmesh_reranker.feedback.intake import FeedbackIntake
from evenmesh_reranker.feedback.training import Training
from evenmesh_reranker.models.registry import ModelRegistry

NAME: Final = pb.DESCRIPTOR.services_by_name["FeedbackService"].full_name
"""Full name of the feedback service."""

_DELETED: Final = 1000
"""Items that one transaction deletes: whoever stores feedback meanwhile waits for one of these at most."""
_STATUSES: Final = 2
"""Most statuses of trainings that are read at a time, each of which counts all feedback of a tenant."""

Context = grpc.aio.ServicerContext[Any, Any]


class FeedbackServicer(rpc.FeedbackServiceServicer):
    """The feedback service; the server accepts no call before its parts are open.

    Args:
        intake: accepts feedback.
        store: keeps feedback.
        agents: keeps agents.
        trainings: keeps reports of trainers.
        models: the models.
        max_agents: most registered agents.
        exports: counts the exports of each tenant.
        codec_pool: threads that check and convert batches: a thousand items take longer than a millisecond.
        clock: returns the time now. Microseconds since 1970.
    """

    def __init__(
        self,
        *,
        intake: FeedbackIntake,
        store: SqlFeedbackStore,
        agents: SqlAgentRegistry,
        trainings: SqlTrainingLog,
        models: ModelRegistry,
        max_agents: int,
        exports: TenantShares,
        codec_pool: TenantPool,
        clock: Callable[[], int],
    ) -> None:
        self._intake = intake
        self._store = store
        self._agents = agents
        self._trainings = trainings
        self._models = models
        self._max_agents = max_agents
        self._exports = exports
        self._codec_pool = codec_pool
        self._clock = clock
        self._status_places = TenantPlaces(_STATUSES, share=0.5, where="the database of feedback")

    async def RecordFeedback(
        self, request: pb.RecordFeedbackRequest, context: Context
    ) -> pb.RecordFeedbackResponse:
        """Store a batch; durable when it answers."""
        items = await self._codec_pool.run(codec.decode_batch, request, _tenant())
        good = [one for one in items if not isinstance(one, MeshError)]
        recorded = iter(await self._intake.record(good))
        outcomes: list[Outcome | MeshError] = [
            one if isinstance(one, MeshError) else next(recorded) for one in items
        ]
        return await self._codec_pool.run(codec.encode_outcomes, request, outcomes)

    async def ExportFeedback(
        self, request: pb.ExportFeedbackRequest, context: Context
    ) -> AsyncIterator[pb.ExportFeedbackResponse]:
        """Stream stored feedback in order; items stored meanwhile may or may not be part of it."""
        scope, since_us = codec.decode_export(request, _tenant())
        after = 0
        with self._exports.hold(1):
            while page := await self._store.page(
                scope,
                after=after,
                limit=codec.MAX_ITEMS,
                since_us=since_us,
                include_flagged=request.include_flagged,
            ):
                yield await self._codec_pool.run(codec.encode_export, page)
                after = page[-1].sequence

    async def RegisterAgent(
        self, request: pb.RegisterAgentRequest, context: Context
    ) -> pb.RegisterAgentResponse:
        """Register an agent, or change its description."""
        agent, description = codec.decode_registration(request, _tenant())
        summary = await self._agents.register(agent, description, most=self._max_agents)
        if summary is None:
            raise MeshError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "QUOTA",
                f"the limit of {self._max_agents} registered agents is reached",
            )
        await self._models.register(agent)
        known = await self._models.knows(agent)
        return pb.RegisterAgentResponse(agent=codec.encode_agent(summary, known=known))

    async def DeleteAgent(self, request: pb.DeleteAgentRequest, context: Context) -> pb.DeleteAgentResponse:
        """Delete an agent with all that is kept of it, its feedback some items at a time.

        First what it has stored, so that no trainer may train it any more, then its versions.
        """
        agent = codec.decode_deletion(request, _tenant())
        known, items, count = False, 0, _DELETED
        while count == _DELETED:
            found = await self._store.delete_agent(agent, limit=_DELETED)
            known = known or found is not None
            count = found or 0
            items += count
        self._intake.forget(agent)
        models = await self._models.forget(agent)
        return pb.DeleteAgentResponse(deleted=known or models > 0, num_feedback=items, num_models=models)

    async def ListAgents(self, request: pb.ListAgentsRequest, context: Context) -> pb.ListAgentsResponse:
        """Return a page of agents; to a caller that is bound to some, of these alone."""
        skip, size = codec.decode_page(request, _tenant())
        bound = callers.current().agents
        found = await self._agents.agents(_tenant(), skip=skip, limit=size + 1, among=bound)
        page = found[:size]
        return pb.ListAgentsResponse(
            agents=[codec.encode_agent(one, known=await self._models.knows(one.agent)) for one in page],
            next_page_token=codec.page_token(skip + size, _tenant()) if len(found) > size else "",
        )

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        """Return the versions there are; to a caller that is bound to agents, none of another agent."""
        scope = codec.decode_scope(request, _tenant())
        await self._models.refresh()
        found = [one for one in self._models.models(scope) if _may_see(one.agent)]
        return pb.ListModelsResponse(models=map(codec.encode_model, found))

    async def PromoteModel(
        self, request: pb.PromoteModelRequest, context: Context
    ) -> pb.PromoteModelResponse:
        """Serve a version from the next request on."""
        version = codec.decode_version(request.version)
        if callers.current().agents is not None:
            await self._check_version(version)
        model = await self._models.promote(
            version,
            tenant=_tenant(),
            merge_agent_tokens=request.merge_agent_tokens,
        )
        return pb.PromoteModelResponse(model=codec.encode_model(model))

    async def RollbackModel(
        self, request: pb.RollbackModelRequest, context: Context
    ) -> pb.RollbackModelResponse:
        """Serve the version before."""
        model = await self._models.rollback(codec.decode_scope(request, _tenant(), every=True))
        return pb.RollbackModelResponse(model=codec.encode_model(model))

    async def GetTrainingStatus(
        self, request: pb.GetTrainingStatusRequest, context: Context
    ) -> pb.GetTrainingStatusResponse:
        """Return the reports of trainers, and the feedback that waits for them."""
        scope = codec.decode_scope(request, _tenant())
        async with self._status_places.hold(deadline.current()):
            if isinstance(scope, Agent):
                trainings: Sequence[Training] = [await self._trainings.training(scope)]
            else:
                every = await self._trainings.trainings(scope.tenant)
                trainings = [one for one in every if _may_see(one.report.agent)]
        return codec.encode_trainings(trainings, self._clock())

    async def _check_version(self, version: str) -> None:
        """Check that a caller that is bound to agents promotes a version of one of these.

        Raises:
            PermissionDenied: it is a version of another agent or of all, or there is none.
        """
        await self._models.refresh()
        found = [one for one in self._models.models(AllAgents(_tenant())) if one.version == version]
        agent = found[0].agent if found else None
        if agent is None:
            agents.check_all("version")
        else:
            agents.check(agent.task_id, agent.model_id, "version")


def _may_see(agent: Agent | None) -> bool:
    """Return whether the caller may know of what is of an agent, or of all if None."""
    return agent is None or agents.may(agent.task_id, agent.model_id)


def _tenant() -> str:
    """Return the tenant of the caller's credential."""
    return callers.current().tenant
