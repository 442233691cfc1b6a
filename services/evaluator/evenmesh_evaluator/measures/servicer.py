"""The RPCs that measure what comes with the request."""
# ruff: noqa: N802 - names and arguments are the contract's

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final, TypeVar

from google.protobuf.message import Message

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as pb_grpc
from evenmesh.wire.errors import FailedPrecondition
from evenmesh_evaluator import cost, measures
from evenmesh_evaluator.fields import kib
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.compute import steps
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_kit.rpc.handlers import Context
from evenmesh_kit.rpc.wire_scan import check_bounds
from evenmesh_lab.similarities import MissingModel, Similarities

R = TypeVar("R", bound=Message)
T = TypeVar("T")

_INLINE_BYTES: Final = 65_536
"""Largest request whose cost is computed on the event loop."""
_log = logging.getLogger("evenmesh.evaluator.measures")


class MeasuresServicer(pb_grpc.EvaluatorServiceServicer):
    """Measures rankings, answers, votes and conversations that come with the call.

    Every method goes the same way: the cost of the request, which refuses what is too much; admission by it;
    the measure, in a thread, which ends before its next step once its caller is gone.

    Args:
        similarities: similarities of answers, by name; models load on first use.
        pool: threads that compute.
        admission: counts KiB of requests in flight, and what they cost.
    """

    def __init__(self, similarities: Similarities, *, pool: TenantPool, admission: Admission) -> None:
        self._similarities = similarities
        self._measures_pool = pool
        self._admission = admission

    async def EvaluateExposure(
        self, request: pb.EvaluateExposureRequest, context: Context
    ) -> pb.EvaluateExposureResponse:
        """Measure the expected exposure of rankings against the useful passages."""
        return await self._compute(request, measures.exposure)

    async def EvaluateUtility(
        self, request: pb.EvaluateUtilityRequest, context: Context
    ) -> pb.EvaluateUtilityResponse:
        """Measure the utility of answers against references, and its expectation."""
        return await self._compute(request, measures.utility)

    async def EvaluateTradeoff(
        self, request: pb.EvaluateTradeoffRequest, context: Context
    ) -> pb.EvaluateTradeoffResponse:
        """Measure how utility or relevance trades off against disparity."""
        return await self._compute(request, measures.tradeoff)

    async def EvaluateRankings(
        self, request: pb.EvaluateRankingsRequest, context: Context
    ) -> pb.EvaluateRankingsResponse:
        """Measure rankings against judgements by standard metrics."""
        return await self._compute(request, measures.rankings)

    async def EvaluateRankedList(
        self, request: pb.EvaluateRankedListRequest, context: Context
    ) -> pb.EvaluateRankedListResponse:
        """Measure group fairness and relevance of a ranked list."""
        return await self._compute(request, measures.ranked_list)

    async def EvaluateConversation(
        self, request: pb.EvaluateConversationRequest, context: Context
    ) -> pb.EvaluateConversationResponse:
        """Measure group fairness and relevance of a conversation."""
        return await self._compute(request, measures.conversation)

    async def Vote(self, request: pb.VoteRequest, context: Context) -> pb.VoteResponse:
        """Let the answers of an ensemble of retrievers vote."""
        return await self._compute(request, partial(measures.vote, similarities=self._similarities))

    async def VoteAnytime(
        self, request_iterator: AsyncIterator[pb.VoteAnytimeRequest], context: Context
    ) -> AsyncIterator[pb.VoteAnytimeResponse]:
        """Let answers vote as they arrive: reply to every answer with the winner so far."""
        session: measures.AnytimeVote | None = None
        async for request in request_iterator:
            check_bounds(request)
            if session is None:
                begin = partial(measures.AnytimeVote, similarities=self._similarities)
                session = await self._compute(request, begin)
            else:
                yield await self._compute(request, session.add, session.cost)

    async def SearchVoteWeights(
        self, request: pb.SearchVoteWeightsRequest, context: Context
    ) -> pb.SearchVoteWeightsResponse:
        """Search the weights of a vote that answer training questions best."""
        search = partial(measures.search_weights, similarities=self._similarities)
        return await self._compute(request, search)

    async def CompareRetrievers(
        self, request: pb.CompareRetrieversRequest, context: Context
    ) -> pb.CompareRetrieversResponse:
        """Compare retrievers by their answers; a right answer equals a reference after normalisation."""
        return await self._compute(request, measures.compare_retrievers)

    async def CompareSystems(
        self, request: pb.CompareSystemsRequest, context: Context
    ) -> pb.CompareSystemsResponse:
        """Test whether one system is better than another on the same queries."""
        return await self._compute(request, measures.compare_systems)

    async def _compute(
        self,
        request: R,
        measure: Callable[..., T],
        cost_of: Callable[[R], cost.Cost] = cost.of,
    ) -> T:
        """Measure a request.

        Raises:
            InvalidField: it costs too much, or a bound of the contract is broken.
        """
        weight = kib(request)
        if weight * 1024 <= _INLINE_BYTES:
            estimated = cost_of(request)
        else:
            estimated = await self._measures_pool.run(cost_of, request)
        async with self._admission.admit(weight + estimated.kib):
            try:
                return await steps.run(self._measures_pool, lambda check: measure(request, check=check))
            except MissingModel as error:
                _log.warning("%s", error)
                raise FailedPrecondition("MODEL_MISSING", f"{error.setting}: {error.why}") from error
