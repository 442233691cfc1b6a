"""The orchestrator on the wire: thin RPCs over the pipeline."""
# ruff: noqa: N802 - names and arguments are the contract's

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any, Final, TypeVar

import grpc

from meshkit import deadline, metering
from meshkit.admission import Admission
from meshkit.compute import ComputePool
from meshkit.errors import InvalidField, MeshError
from meshkit.security import caller as callers
from orchestrator import codec, domain
from orchestrator.audits import codec as audit_codec
from orchestrator.conversations import codec as conversation_codec
from orchestrator.conversations.shelf import Conversation, Shelf
from orchestrator.conversations.stream import Inbox
from orchestrator.conversations.talk import Kept, Talk, TurnEvent
from orchestrator.ensembles.definitions import Ensembles
from orchestrator.expressions.sources import Catalogue
from orchestrator.pipeline import Pipeline
from ragmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from ragmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as pb_grpc

Context = grpc.aio.ServicerContext[Any, Any]

E = TypeVar("E")

_INLINE_CANDIDATES: Final = 64


class OrchestratorServicer(pb_grpc.OrchestratorServiceServicer):
    """Serves ``ragmesh.orchestrator.v1.OrchestratorService``.

    Args:
        pipeline: runs asks.
        pool: threads that check asks which bring many candidates.
        admission: counts answers wanted by the asks and audits in flight.
        default_collection: collection of asks that name none.
        default_reranker: reranker of asks that name none.
        sources: what expressions can name.
        ensembles: what asks can name.
        talk: takes the turns of conversations.
        shelf: keeps conversations.
        turn_timeout_s: what a turn may take that says nothing of it. Seconds.
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
        ensembles: Ensembles,
        talk: Talk,
        shelf: Shelf,
        turn_timeout_s: float,
    ) -> None:
        self._pipeline = pipeline
        self._pool = pool
        self._admission = admission
        self._default_collection = default_collection
        self._default_reranker = default_reranker
        self._sources = sources
        self._ensembles = ensembles
        self._talk = talk
        self._shelf = shelf
        self._turn_timeout_s = turn_timeout_s

    async def Ask(self, request: pb.AskRequest, context: Context) -> AsyncIterator[pb.AskResponse]:
        """Answers one question; events as they happen, ``done`` last."""
        if request.HasField("ensemble"):
            ensemble = codec.ensemble(
                request,
                default_collection=self._default_collection,
                default_reranker=self._default_reranker,
                sources=self._sources,
                ensembles=self._ensembles,
            )
            work, run = len(ensemble.members), self._pipeline.ensemble(ensemble, deadline.current())
        else:
            if len(request.candidates.passages) > _INLINE_CANDIDATES:
                ask = await self._pool.run(self._decode, request)
            else:
                ask = self._decode(request)
            work, run = max(1, ask.num_answers), self._pipeline.ask(ask, deadline.current())
        async with self._admission.admit(work), aclosing(_ahead(run)) as events:
            async for event in events:
                yield codec.event(event)

    async def Audit(self, request: pb.AuditRequest, context: Context) -> AsyncIterator[pb.AuditResponse]:
        """Samples rankings of one labelled query and streams what each did, ``done`` last."""
        audit = await self._pool.run(
            partial(
                audit_codec.audit,
                request,
                default_collection=self._default_collection,
                default_reranker=self._default_reranker,
                sources=self._sources,
            )
        )
        async with self._admission.admit(audit.num_rankings if audit.ask.num_answers else 1):
            try:
                async with aclosing(_ahead(self._pipeline.audit(audit, deadline.current()))) as events:
                    async for event in events:
                        yield audit_codec.event(event)
            except MeshError as error:
                raise audit_codec.of_ask(error) from error

    async def Converse(
        self, request_iterator: AsyncIterator[pb.ConverseRequest], context: Context
    ) -> AsyncIterator[pb.ConverseResponse]:
        """Takes the turns of one conversation; a turn that fails is told of, and the next one is taken."""
        inbox = Inbox()
        reader = asyncio.create_task(inbox.fill(request_iterator))
        conversation: Conversation | None = None
        try:
            while (request := await inbox.next(within_s=self._shelf.lifetime_s)) is not None:
                first = conversation is None
                if conversation is None:
                    conversation = self._shelf.take(callers.current().tenant, request.conversation_id)
                try:
                    if not first:  # which came with the call, and was counted with it
                        metering.current().begin(writes=True)
                    async with aclosing(self._turn(conversation, request, inbox)) as events:
                        async for event in events:
                            response = conversation_codec.response(conversation, event)
                            if isinstance(event, Kept):
                                conversation.keep(event.told)
                                conversation.relevance = event.relevance
                            yield response
                except MeshError as error:
                    yield conversation_codec.failed(conversation, error)
        finally:
            if conversation is not None:
                self._shelf.put_back(conversation)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _turn(
        self, conversation: Conversation, request: pb.ConverseRequest, inbox: Inbox
    ) -> AsyncGenerator[TurnEvent, None]:
        if request.conversation_id not in ("", conversation.id):
            raise InvalidField(
                "conversation_id", "is not this stream's; use one stream for each conversation"
            )
        if request.HasField("options"):
            conversation.set_options(conversation_codec.options(request.options))
        ask, conversation.kept = conversation_codec.ask(
            request.ask,
            conversation,
            default_collection=self._default_collection,
            default_reranker=self._default_reranker,
            sources=self._sources,
        )
        conversation.check_room(ask.question)
        conversation.run_id = ask.run_id
        timeout_s = conversation_codec.timeout_s(request, self._turn_timeout_s)
        limit = deadline.Deadline.after(min(timeout_s, deadline.current().remaining()))
        async with self._admission.admit(max(1, ask.num_answers)):
            turn = _ahead(self._talk.turn(conversation, ask, limit))
            async with aclosing(turn), aclosing(inbox.until_cancelled(turn)) as events:
                async for event in events:
                    yield event

    def _decode(self, request: pb.AskRequest) -> domain.Ask:
        return codec.ask(
            request,
            default_collection=self._default_collection,
            default_reranker=self._default_reranker,
            sources=self._sources,
        )


async def _ahead(events: AsyncGenerator[E, None]) -> AsyncGenerator[E, None]:
    """Lets the pipeline go on with the next stage while an event is on its way to the caller.

    What may wait here is bounded by the call: a pool, as many answers as were admitted, and their words.
    """
    waiting: asyncio.Queue[E | None] = asyncio.Queue()

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
