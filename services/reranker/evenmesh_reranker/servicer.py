"""RPCs of the reranker: decode, admit, rerank, encode."""
# ruff: noqa: N802 - names and arguments are the contract's

from __future__ import annotations

import math
from typing import Any, Final

import grpc

from evenmesh.reranker.v1 import reranker_service_pb2 as pb
from evenmesh.reranker.v1 import reranker_service_pb2_grpc as rpc
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_kit.security import caller as callers
from evenmesh_reranker import codec
from evenmesh_reranker.engine import Reranking
from evenmesh_reranker.feedback.served import ServedRankings

RERANKER: Final = pb.DESCRIPTOR.services_by_name["RerankerService"].full_name
"""Full name of the reranker service."""

Context = grpc.aio.ServicerContext[Any, Any]


class RerankerServicer(rpc.RerankerServiceServicer):
    """The reranker service. :meth:`open` gives it its engine when the service starts.

    Args:
        admission: counts pairs of query and passage.
        codec_pool: threads that check and convert requests: a thousand passages take longer than a
            millisecond.
    """

    def __init__(self, admission: Admission, codec_pool: TenantPool) -> None:
        self._admission = admission
        self._codec_pool = codec_pool
        self._engine: Reranking | None = None
        self._served: ServedRankings | None = None

    def open(self, engine: Reranking, served: ServedRankings | None = None) -> None:
        """Answer with ``engine`` from now on, and record rankings in ``served``."""
        self._engine = engine
        self._served = served

    @property
    def engine(self) -> Reranking:
        """The engine; the server accepts no call before there is one."""
        if self._engine is None:
            raise RuntimeError("the reranker was called before it was opened")
        return self._engine

    async def Rerank(self, request: pb.RerankRequest, context: Context) -> pb.RerankResponse:
        """Score every passage for the query and order them."""
        call = await self._codec_pool.run(codec.decode_request, request, callers.current().tenant)
        async with self._admission.admit(len(call.passages)):
            ranking = await self.engine.rerank(
                call.query,
                call.passages,
                call.agent,
                top_k=call.top_k,
                reranker=call.reranker,
                tolerance=call.tolerance,
                first=call.first,
                fusion=call.fusion,
            )
        if self._served is not None:
            scored = zip(call.passages, ranking.scores, strict=True)
            ids = [passage.id for passage, score in scored if not math.isnan(score)]
            self._served.remember(call.query, call.agent, ranking.model_version, ids)
        return codec.encode_ranking(ranking)
