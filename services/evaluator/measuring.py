"""Measuring what callers bring: thin RPCs over the evaluation."""
# ruff: noqa: N802 - names and arguments are the contract's

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from google.protobuf.message import Message

from meshkit.admission import Admission
from meshkit.compute import ComputePool
from ragmesh.evaluator.v1 import evaluator_service_pb2 as pb
from ragmesh.evaluator.v1 import evaluator_service_pb2_grpc as pb_grpc
from services.evaluator import evaluation
from services.evaluator.calls import Context, kib
from services.evaluator.codec import measuring as codec

P = ParamSpec("P")
T = TypeVar("T")


class MeasuringServicer(pb_grpc.EvaluatorServiceServicer):
    """Metrics of rankings, answers, votes and conversations that come with the call.

    Args:
        pool: threads that compute.
        admission: counts KiB of requests in flight.
    """

    def __init__(self, *, pool: ComputePool, admission: Admission) -> None:
        self._pool = pool
        self._admission = admission

    async def EvaluateExposure(
        self, request: pb.EvaluateExposureRequest, context: Context
    ) -> pb.EvaluateExposureResponse:
        """Expected exposure of rankings against the useful passages."""
        return await self._computed(request, _exposure, request)

    async def EvaluateUtility(
        self, request: pb.EvaluateUtilityRequest, context: Context
    ) -> pb.EvaluateUtilityResponse:
        """Utility of answers against references, and its expectation."""
        return await self._computed(request, _utility, request)

    async def Vote(self, request: pb.VoteRequest, context: Context) -> pb.VoteResponse:
        """Lets the answers of an ensemble of retrievers vote."""
        return await self._computed(request, _vote, request)

    async def EvaluateConversation(
        self, request: pb.EvaluateConversationRequest, context: Context
    ) -> pb.EvaluateConversationResponse:
        """Group fairness and relevance of a conversation."""
        return await self._computed(request, _conversation, request)

    async def _computed(
        self, request: Message, compute: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        with self._admission.admit(kib(request)):
            return await self._pool.run(compute, *args, **kwargs)


def _exposure(request: pb.EvaluateExposureRequest) -> pb.EvaluateExposureResponse:
    return codec.exposure_response(evaluation.exposure(codec.exposure_question(request)))


def _utility(request: pb.EvaluateUtilityRequest) -> pb.EvaluateUtilityResponse:
    return codec.utility_response(evaluation.utilities(codec.utility_question(request)))


def _vote(request: pb.VoteRequest) -> pb.VoteResponse:
    return codec.vote_response(evaluation.vote(codec.vote_question(request)))


def _conversation(request: pb.EvaluateConversationRequest) -> pb.EvaluateConversationResponse:
    return codec.conversation_response(evaluation.conversation(codec.conversation_question(request)))
