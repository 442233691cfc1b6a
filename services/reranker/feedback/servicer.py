"""RPCs of the feedback service: decode, hand over, encode."""
# ruff: noqa: N802 - names and arguments are the contract's

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc

from meshkit.compute import ComputePool
from meshkit.errors import MeshError
from meshkit.security import caller as callers
from ragmesh.reranker.v1 import feedback_service_pb2 as pb
from ragmesh.reranker.v1 import feedback_service_pb2_grpc as rpc
from services.reranker.domain import Agent
from services.reranker.feedback import codec
from services.reranker.feedback.domain import Outcome
from services.reranker.feedback.intake import FeedbackIntake
from services.reranker.feedback.ports import AgentRegistry, FeedbackStore, TrainingLog
from services.reranker.feedback.training import Training
from services.reranker.models.governor import Governor

NAME: Final = "ragmesh.reranker.v1.FeedbackService"
"""Full name of the feedback service."""

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class FeedbackServices:
    """What the servicer hands calls over to.

    Attributes:
        intake: takes feedback in.
        store: has it.
        agents: knows the agents.
        trainings: knows what trainers do.
        models: governs the models.
        max_agents: most agents that may be registered.
    """

    intake: FeedbackIntake
    store: FeedbackStore
    agents: AgentRegistry
    trainings: TrainingLog
    models: Governor
    max_agents: int


class FeedbackServicer(rpc.FeedbackServiceServicer):
    """The feedback service on the wire.

    Args:
        services: what answers; the server lets no call in before they are open.
        codec_pool: where batches are checked and converted: a thousand items take longer than a millisecond.
        clock: what time it is. Microseconds since 1970.
    """

    def __init__(
        self, services: FeedbackServices, codec_pool: ComputePool, *, clock: Callable[[], int]
    ) -> None:
        self._services = services
        self._codec_pool = codec_pool
        self._clock = clock

    async def RecordFeedback(
        self, request: pb.RecordFeedbackRequest, context: Context
    ) -> pb.RecordFeedbackResponse:
        """Stores a batch; durable when it answers."""
        items = await self._codec_pool.run(codec.decode_batch, request, _tenant())
        good = [one for one in items if not isinstance(one, MeshError)]
        recorded = iter(await self._services.intake.record(good))
        outcomes: list[Outcome | MeshError] = [
            one if isinstance(one, MeshError) else next(recorded) for one in items
        ]
        return await self._codec_pool.run(codec.encode_outcomes, request, outcomes)

    async def ExportFeedback(
        self, request: pb.ExportFeedbackRequest, context: Context
    ) -> AsyncIterator[pb.ExportFeedbackResponse]:
        """Streams what is stored, in order; what is stored meanwhile may or may not be among it."""
        export = codec.decode_export(request, _tenant())
        after = 0
        while page := await self._services.store.page(
            export.whose,
            after=after,
            limit=codec.MAX_ITEMS,
            since_us=export.since_us,
            include_flagged=export.include_flagged,
        ):
            yield await self._codec_pool.run(codec.encode_export, page)
            after = page[-1].sequence

    async def RegisterAgent(
        self, request: pb.RegisterAgentRequest, context: Context
    ) -> pb.RegisterAgentResponse:
        """Registers an agent, or changes its description."""
        agent, description = codec.decode_registration(request, _tenant())
        services = self._services
        summary = await services.agents.register(agent, description, most=services.max_agents)
        if summary is None:
            raise MeshError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "QUOTA",
                f"{services.max_agents} agents are registered already, and no more may be",
            )
        await services.models.register(agent)
        return pb.RegisterAgentResponse(
            agent=codec.encode_agent(summary, known=await services.models.knows(agent))
        )

    async def ListAgents(self, request: pb.ListAgentsRequest, context: Context) -> pb.ListAgentsResponse:
        """A page of agents."""
        after, size = codec.decode_page(request)
        found = await self._services.agents.agents(_tenant(), after=after, limit=size + 1)
        page = found[:size]
        return pb.ListAgentsResponse(
            agents=[
                codec.encode_agent(one, known=await self._services.models.knows(one.agent)) for one in page
            ],
            next_page_token=str(page[-1].sequence) if len(found) > size else "",
        )

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        """The versions there are."""
        whose = codec.audience(request, _tenant())
        await self._services.models.refresh()
        return pb.ListModelsResponse(
            models=[codec.encode_model(one) for one in self._services.models.models(whose)]
        )

    async def PromoteModel(
        self, request: pb.PromoteModelRequest, context: Context
    ) -> pb.PromoteModelResponse:
        """Serves a version from the next request on."""
        model = await self._services.models.promote(
            codec.decode_version(request.version),
            tenant=_tenant(),
            merge_agent_tokens=request.merge_agent_tokens,
        )
        return pb.PromoteModelResponse(model=codec.encode_model(model))

    async def RollbackModel(
        self, request: pb.RollbackModelRequest, context: Context
    ) -> pb.RollbackModelResponse:
        """Serves what was served before."""
        model = await self._services.models.rollback(codec.audience(request, _tenant()))
        return pb.RollbackModelResponse(model=codec.encode_model(model))

    async def GetTrainingStatus(
        self, request: pb.GetTrainingStatusRequest, context: Context
    ) -> pb.GetTrainingStatusResponse:
        """What trainers say, and what waits for them."""
        whose = codec.audience(request, _tenant())
        log = self._services.trainings
        if isinstance(whose, Agent):
            trainings: Sequence[Training] = [await log.training(whose)]
        else:
            trainings = await log.trainings(whose.tenant)
        return codec.encode_trainings(trainings, self._clock())


def _tenant() -> str:
    """Whose agents, feedback and models a call means: the credential's."""
    return callers.current().tenant
