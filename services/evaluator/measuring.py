"""Measuring what callers bring: thin RPCs over the evaluation."""
# ruff: noqa: N802 - names and arguments are the contract's

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, ParamSpec, TypeVar

from meshkit.admission import Admission
from meshkit.compute import ComputePool
from meshkit.errors import FailedPrecondition
from raglab.similarities import MissingModel, Similarities, names, needs_model
from ragmesh.evaluator.v1 import evaluator_service_pb2 as pb
from ragmesh.evaluator.v1 import evaluator_service_pb2_grpc as pb_grpc
from services.evaluator import evaluation
from services.evaluator.calls import Context, kib
from services.evaluator.codec import measuring as codec

P = ParamSpec("P")
T = TypeVar("T")
Q = TypeVar("Q")

_CELL_BYTES: Final = 8
_log = logging.getLogger("ragmesh.evaluator.measuring")


class _AbandonedError(Exception):
    """The caller of a long computation is gone."""


class MeasuringServicer(pb_grpc.EvaluatorServiceServicer):
    """Metrics of rankings, answers, votes and conversations that come with the call.

    Args:
        similarities: how alike answers are, by name; their models load when they are first used.
        pool: threads that compute.
        admission: counts KiB of requests in flight and of the similarities made for them; a pair of answers
            that a model reads counts as one.
    """

    def __init__(self, similarities: Similarities, *, pool: ComputePool, admission: Admission) -> None:
        self._similarities = similarities
        self._pool = pool
        self._admission = admission

    async def EvaluateExposure(
        self, request: pb.EvaluateExposureRequest, context: Context
    ) -> pb.EvaluateExposureResponse:
        """Expected exposure of rankings against the useful passages."""
        return await self._computed(kib(request), _exposure, request)

    async def EvaluateUtility(
        self, request: pb.EvaluateUtilityRequest, context: Context
    ) -> pb.EvaluateUtilityResponse:
        """Utility of answers against references, and its expectation."""
        return await self._computed(kib(request), _utility, request)

    async def EvaluateTradeoff(
        self, request: pb.EvaluateTradeoffRequest, context: Context
    ) -> pb.EvaluateTradeoffResponse:
        """How utility or relevance trades off against disparity."""
        return await self._while_wanted(kib(request), _tradeoff, request)

    async def EvaluateRankings(
        self, request: pb.EvaluateRankingsRequest, context: Context
    ) -> pb.EvaluateRankingsResponse:
        """Field-standard metrics of rankings against judgements."""
        return await self._computed(kib(request), _rankings, request)

    async def EvaluateRankedList(
        self, request: pb.EvaluateRankedListRequest, context: Context
    ) -> pb.EvaluateRankedListResponse:
        """Group fairness and relevance of a ranked list."""
        return await self._computed(kib(request), _ranked_list, request)

    async def EvaluateConversation(
        self, request: pb.EvaluateConversationRequest, context: Context
    ) -> pb.EvaluateConversationResponse:
        """Group fairness and relevance of a conversation."""
        return await self._computed(kib(request), _conversation, request)

    async def Vote(self, request: pb.VoteRequest, context: Context) -> pb.VoteResponse:
        """Lets the answers of an ensemble of retrievers vote."""
        work = kib(request) + _comparisons(request.similarities, len(request.answers))
        return await self._computed(work, self._vote, request)

    async def VoteAnytime(
        self, request_iterator: AsyncIterator[pb.VoteAnytimeRequest], context: Context
    ) -> AsyncIterator[pb.VoteAnytimeResponse]:
        """Lets answers vote as they arrive: every answer is met with the winner so far.

        An answer is compared with those that came before it, and with nothing else.
        """
        ballot: evaluation.Ballot | None = None
        async for request in request_iterator:
            if ballot is None:
                ballot = await self._computed(kib(request), self._ballot, request)
            else:
                yield await self._computed(kib(request) + ballot.size, _count, request, ballot)

    async def SearchVoteWeights(
        self, request: pb.SearchVoteWeightsRequest, context: Context
    ) -> pb.SearchVoteWeightsResponse:
        """Searches the weights of a vote that answer training questions best."""
        sizes = [len(question.answers) for question in request.questions]
        work = kib(request) + sum(_comparisons(request.vote.similarities, size) for size in sizes)
        return await self._while_wanted(work, self._search, request)

    async def CompareRetrievers(
        self, request: pb.CompareRetrieversRequest, context: Context
    ) -> pb.CompareRetrieversResponse:
        """How retrievers disagree. An answer is right if it is a reference, but for case and punctuation."""
        return await self._computed(kib(request), _retrievers, request)

    async def CompareSystems(
        self, request: pb.CompareSystemsRequest, context: Context
    ) -> pb.CompareSystemsResponse:
        """Whether one system is better than another on the same queries."""
        return await self._while_wanted(kib(request), _systems, request)

    async def _while_wanted(self, work: int, compute: Callable[[Q, Callable[[], None]], T], request: Q) -> T:
        """Computes what may take minutes; it ends soon after its caller has gone."""
        gone = threading.Event()

        def check() -> None:
            if gone.is_set():
                raise _AbandonedError

        try:
            return await self._computed(work, compute, request, check)
        except asyncio.CancelledError:
            gone.set()
            raise

    async def _computed(self, work: int, compute: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._admission.admit(work):
            try:
                return await self._pool.run(compute, *args, **kwargs)
            except MissingModel as error:
                _log.warning("%s", error)
                raise FailedPrecondition("MODEL_MISSING", f"{error.setting}: {error.why}") from error

    def _vote(self, request: pb.VoteRequest) -> pb.VoteResponse:
        return codec.vote_response(evaluation.vote(codec.vote_question(request), self._similarities))

    def _ballot(self, request: pb.VoteAnytimeRequest) -> evaluation.Ballot:
        return evaluation.Ballot(codec.anytime_question(request), self._similarities)

    def _search(
        self, request: pb.SearchVoteWeightsRequest, check: Callable[[], None]
    ) -> pb.SearchVoteWeightsResponse:
        question = codec.search_question(request)
        return codec.search_response(evaluation.search_weights(question, self._similarities, check))


def _exposure(request: pb.EvaluateExposureRequest) -> pb.EvaluateExposureResponse:
    return codec.exposure_response(evaluation.exposure(codec.exposure_question(request)))


def _utility(request: pb.EvaluateUtilityRequest) -> pb.EvaluateUtilityResponse:
    return codec.utility_response(evaluation.utility(codec.utility_question(request)))


def _tradeoff(request: pb.EvaluateTradeoffRequest, check: Callable[[], None]) -> pb.EvaluateTradeoffResponse:
    return codec.tradeoff_response(evaluation.tradeoff(codec.tradeoff_question(request), check))


def _rankings(request: pb.EvaluateRankingsRequest) -> pb.EvaluateRankingsResponse:
    return codec.rankings_response(evaluation.ranking_quality(codec.rankings_question(request)))


def _ranked_list(request: pb.EvaluateRankedListRequest) -> pb.EvaluateRankedListResponse:
    return codec.ranked_list_response(evaluation.ranked_list(codec.ranked_list_question(request)))


def _conversation(request: pb.EvaluateConversationRequest) -> pb.EvaluateConversationResponse:
    return codec.conversation_response(evaluation.conversation(codec.conversation_question(request)))


def _count(request: pb.VoteAnytimeRequest, ballot: evaluation.Ballot) -> pb.VoteAnytimeResponse:
    index, text = codec.anytime_answer(request, ballot)
    if text is None:
        ballot.lose(index)
    else:
        ballot.arrive(index, text)
    return codec.anytime_response(ballot.standing(), ballot.waiting)


def _retrievers(request: pb.CompareRetrieversRequest) -> pb.CompareRetrieversResponse:
    return codec.retrievers_response(evaluation.compare_retrievers(codec.retrievers_question(request)))


def _systems(request: pb.CompareSystemsRequest, check: Callable[[], None]) -> pb.CompareSystemsResponse:
    return codec.systems_response(evaluation.compare_systems(codec.systems_question(request), check))


def _comparisons(similarities: Sequence[str], answers: int) -> int:
    """What the similarities of one vote weigh: their matrices, and a KiB for each pair that a model reads."""
    known = set(names())
    models = sum(needs_model(name) for name in similarities if name in known)
    cells = max(1, len(similarities)) * answers**2
    return cells * _CELL_BYTES // 1024 + models * answers * (answers - 1) // 2
