"""RPCs of the reranker: decode, admit, hand over, encode."""
# ruff: noqa: N802 - names and arguments are the contract's

from __future__ import annotations

from typing import Any, Final, NoReturn

import grpc

from meshkit.admission import Admission
from meshkit.compute import ComputePool
from meshkit.errors import Unimplemented
from ragmesh.reranker.v1 import feedback_service_pb2 as feedback_pb
from ragmesh.reranker.v1 import feedback_service_pb2_grpc as feedback_rpc
from ragmesh.reranker.v1 import reranker_service_pb2 as pb
from ragmesh.reranker.v1 import reranker_service_pb2_grpc as rpc
from services.reranker import codec
from services.reranker.engine import Reranking

RERANKER: Final = "ragmesh.reranker.v1.RerankerService"
"""Full name of the reranker service."""
FEEDBACK: Final = "ragmesh.reranker.v1.FeedbackService"
"""Full name of the feedback service."""

Context = grpc.aio.ServicerContext[Any, Any]


class RerankerServicer(rpc.RerankerServiceServicer):
    """The reranker on the wire. Its engine is there once the service has started.

    Args:
        admission: counts pairs of query and passage.
        codec_pool: where requests are checked and converted: a thousand passages take longer than a
            millisecond.
    """

    def __init__(self, admission: Admission, codec_pool: ComputePool) -> None:
        self._admission = admission
        self._codec_pool = codec_pool
        self._engine: Reranking | None = None

    def open(self, engine: Reranking) -> None:
        """Begins to answer, with ``engine``."""
        self._engine = engine

    @property
    def engine(self) -> Reranking:
        """The engine; the server lets no call in before there is one."""
        if self._engine is None:
            raise RuntimeError("the reranker was called before it was opened")
        return self._engine

    async def Rerank(self, request: pb.RerankRequest, context: Context) -> pb.RerankResponse:
        """Scores every passage for the query and orders them."""
        call = await self._codec_pool.run(codec.decode_request, request)
        with self._admission.admit(len(call.passages)):
            ranking = await self.engine.rerank(
                call.query, call.passages, call.agent, top_k=call.top_k, reranker=call.reranker
            )
        return codec.encode_ranking(ranking)


class FeedbackServicer(feedback_rpc.FeedbackServiceServicer):
    """The feedback service on the wire: it says what is served; learning is yet to come."""

    def __init__(self, reranker: RerankerServicer) -> None:
        self._reranker = reranker

    async def RecordFeedback(
        self, request: feedback_pb.RecordFeedbackRequest, context: Context
    ) -> feedback_pb.RecordFeedbackResponse:
        """Refuses: nothing is stored."""
        _not_yet("RecordFeedback", "no feedback is stored")

    async def ListModels(
        self, request: feedback_pb.ListModelsRequest, context: Context
    ) -> feedback_pb.ListModelsResponse:
        """The learned model that is served, if there is one."""
        return codec.encode_models(self._reranker.engine.models())

    async def PromoteModel(
        self, request: feedback_pb.PromoteModelRequest, context: Context
    ) -> feedback_pb.PromoteModelResponse:
        """Refuses: the served model is the one of the settings."""
        _not_yet("PromoteModel", "the served model is the one it was started with")

    async def RollbackModel(
        self, request: feedback_pb.RollbackModelRequest, context: Context
    ) -> feedback_pb.RollbackModelResponse:
        """Refuses: there is no earlier model."""
        _not_yet("RollbackModel", "the served model is the one it was started with")

    async def GetTrainingStatus(
        self, request: feedback_pb.GetTrainingStatusRequest, context: Context
    ) -> feedback_pb.GetTrainingStatusResponse:
        """Refuses: nothing is trained."""
        _not_yet("GetTrainingStatus", "nothing is trained")


def _not_yet(method: str, instead: str) -> NoReturn:
    raise Unimplemented(
        f"FeedbackService.{method} is not in this version of ragmesh yet; {instead}: the reranker does not "
        "learn from feedback so far"
    )
