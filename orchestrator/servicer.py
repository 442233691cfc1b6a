"""The orchestrator on the wire: thin RPCs over the pipeline."""
# ruff: noqa: N802 - names and arguments are the contract's

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import grpc

from meshkit import deadline
from meshkit.admission import Admission
from meshkit.compute import ComputePool
from meshkit.errors import Unimplemented
from orchestrator import codec, domain
from orchestrator.expressions.sources import Catalogue
from orchestrator.pipeline import Pipeline
from ragmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from ragmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as pb_grpc

Context = grpc.aio.ServicerContext[Any, Any]

_INLINE_CANDIDATES: Final = 64


class OrchestratorServicer(pb_grpc.OrchestratorServiceServicer):
    """Serves ``ragmesh.orchestrator.v1.OrchestratorService``.

    Args:
        pipeline: runs asks.
        pool: threads that check asks which bring many candidates.
        admission: counts answers wanted by the asks in flight.
        default_collection: collection of asks that name none.
        default_reranker: reranker of asks that name none.
        sources: what expressions can name.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        pool: ComputePool,
        admission: Admission,
        default_collection: str,
        default_reranker: str,
        sources: Catalogue,
    ) -> None:
        self._pipeline = pipeline
        self._pool = pool
        self._admission = admission
        self._default_collection = default_collection
        self._default_reranker = default_reranker
        self._sources = sources

    async def Ask(self, request: pb.AskRequest, context: Context) -> AsyncIterator[pb.AskResponse]:
        """Answers one question; events as they happen, ``done`` last."""
        if len(request.candidates.passages) > _INLINE_CANDIDATES:
            ask = await self._pool.run(self._decode, request)
        else:
            ask = self._decode(request)
        with self._admission.admit(max(1, ask.num_answers)):
            async with aclosing(_ahead(self._pipeline.ask(ask, deadline.current()))) as events:
                async for event in events:
                    yield codec.event(event)

    def Audit(self, request: pb.AuditRequest, context: Context) -> AsyncIterator[pb.AuditResponse]:
        """Not in this version."""
        raise Unimplemented(
            "Audit is not in this version of ragmesh yet; Ask with sampling and labels reports on one dial"
        )

    def Converse(
        self, request_iterator: AsyncIterator[pb.ConverseRequest], context: Context
    ) -> AsyncIterator[pb.ConverseResponse]:
        """Not in this version."""
        raise Unimplemented(
            "Converse is not in this version of ragmesh yet; Ask answers one question at a time"
        )

    def _decode(self, request: pb.AskRequest) -> domain.Ask:
        return codec.ask(
            request,
            default_collection=self._default_collection,
            default_reranker=self._default_reranker,
            sources=self._sources,
        )


async def _ahead(events: AsyncGenerator[domain.Event, None]) -> AsyncGenerator[domain.Event, None]:
    """Lets the pipeline go on with the next stage while an event is on its way to the caller.

    What may wait here is bounded by the ask: a pool, as many answers as were admitted, and their words.
    """
    waiting: asyncio.Queue[domain.Event | None] = asyncio.Queue()

    async def run() -> None:
        try:
            async with aclosing(events):
                async for event in events:
                    waiting.put_nowait(event)
        finally:
            waiting.put_nowait(None)

    runner = asyncio.create_task(run())
    try:
        while (event := await waiting.get()) is not None:
            yield event
        await runner
    finally:
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)
