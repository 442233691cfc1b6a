"""RPCs of the reranker: decode, admit, hand over, encode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from meshkit.admission import Admission
from meshkit.errors import Unimplemented
from ragmesh.reranker.v1 import feedback_service_pb2 as feedback_pb
from ragmesh.reranker.v1 import feedback_service_pb2_grpc as feedback_rpc
from ragmesh.reranker.v1 import reranker_service_pb2 as pb
from ragmesh.reranker.v1 import reranker_service_pb2_grpc as rpc
from services.reranker import codec
from services.reranker.domain import ServedModel
from services.reranker.engine import Engine

RERANKER_SERVICE: Final = pb.DESCRIPTOR.services_by_name["RerankerService"].full_name
"""Full name of the reranker's service."""
FEEDBACK_SERVICE: Final = feedback_pb.DESCRIPTOR.services_by_name["FeedbackService"].full_name
"""Full name of the feedback service."""

Context = grpc.aio.ServicerContext[Any, Any]


class RerankerServicer(rpc.RerankerServiceServicer):
    """The reranker on the wire. Its engine is there once the service has started.

    Args:
        admission: counts passages to score.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._engine: Engine | None = None

    def open(self, engine: Engine) -> None:
        """Begins to answer, with ``engine``."""
        self._engine = engine

    async def Rerank(self, request: pb.RerankRequest, context: Context) -> pb.RerankResponse:  # noqa: N802
        """Scores every passage for the query and orders them."""
        if self._engine is None:
            raise RuntimeError("the reranker was called before it was opened")
        call = codec.decode_rerank(request)
        with self._admission.admit(len(call.passages)):
            reranked = await self._engine.rerank(
                call.query, call.passages, call.agent, reranker=call.reranker, keep=call.keep
            )
        return codec.encode_rerank(reranked)


class FeedbackServicer(feedback_rpc.FeedbackServiceServicer):
    """What there is of feedback in this version: the served model. The rest says that it is not there."""

    def __init__(self) -> None:
        self._models: Sequence[ServedModel] = ()
        self._loaded_at = Timestamp()

    def open(self, models: Sequence[ServedModel]) -> None:
        """Begins to answer, with the models that are served."""
        self._models = models
        self._loaded_at.GetCurrentTime()

    async def ListModels(  # noqa: N802
        self, request: feedback_pb.ListModelsRequest, context: Context
    ) -> feedback_pb.ListModelsResponse:
        """Lists the models this process serves."""
        return codec.encode_models(self._models, self._loaded_at)

    async def RecordFeedback(  # noqa: N802
        self, request: feedback_pb.RecordFeedbackRequest, context: Context
    ) -> feedback_pb.RecordFeedbackResponse:
        """Not in this version: nothing is stored, and nothing is acknowledged."""
        _not_here("RecordFeedback", "no feedback was stored")

    async def PromoteModel(  # noqa: N802
        self, request: feedback_pb.PromoteModelRequest, context: Context
    ) -> feedback_pb.PromoteModelResponse:
        """Not in this version."""
        _not_here("PromoteModel", "choose the model with RAGMESH_RERANKER_CROSS_ENCODER")

    async def RollbackModel(  # noqa: N802
        self, request: feedback_pb.RollbackModelRequest, context: Context
    ) -> feedback_pb.RollbackModelResponse:
        """Not in this version."""
        _not_here("RollbackModel", "choose the model with RAGMESH_RERANKER_CROSS_ENCODER")

    async def GetTrainingStatus(  # noqa: N802
        self, request: feedback_pb.GetTrainingStatusRequest, context: Context
    ) -> feedback_pb.GetTrainingStatusResponse:
        """Not in this version."""
        _not_here("GetTrainingStatus", "nothing is trained")


def _not_here(method: str, instead: str) -> NoReturn:
    raise Unimplemented(f"{method} is not in this version of ragmesh yet; {instead}")
