"""The RPCs of the orchestrator, over the pipeline."""
# ruff: noqa: N802 - the contract sets names and arguments

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import ExitStack, aclosing
from functools import partial
from typing import Any, Final, TypeVar

import grpc

from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as pb_grpc
from evenmesh.wire import checks, deadline
from evenmesh.wire.errors import InvalidField, MeshError
from evenmesh_kit.admission import metering
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_kit.rpc.wire_scan import check_bounds
from evenmesh_kit.security import caller as callers
from evenmesh_orchestrator import codec, cost
from evenmesh_orchestrator.asks.pipeline import Pipeline
from evenmesh_orchestrator.asks.request import Defaults, read_ask, read_ensemble
from evenmesh_orchestrator.audits import codec as audit_codec
from evenmesh_orchestrator.conversations import codec as conversation_codec
from evenmesh_orchestrator.conversations.conversation import Conversation
from evenmesh_orchestrator.conversations.store import ConversationLost, ConversationStore
from evenmesh_orchestrator.conversations.stream import Inbox
from evenmesh_orchestrator.conversations.turns import TurnEnd, TurnEvent, TurnHandler
from evenmesh_orchestrator.domain import Ask, Retrieved

Context = grpc.aio.ServicerContext[Any, Any]

E = TypeVar("E")
T = TypeVar("T")

_INLINE_CANDIDATES: Final = 64
_AHEAD: Final = 64
"""Events of an audit that wait for a caller who reads slowly: each names up to a hundred passages."""
_MAX_ID_BYTES: Final = 128
_INLINE_BYTES: Final = 65_536


class OrchestratorServicer(pb_grpc.OrchestratorServiceServicer):
    """Serves ``evenmesh.orchestrator.v1.OrchestratorService``.

    Args:
        pipeline: runs asks.
        pool: threads that read large requests.
        admission: counts the work of asks and audits in flight, in answers.
        defaults: what requests may leave out, and what they can name.
        turns: runs the turns of conversations.
        conversations: stores conversations.
        turn_timeout_s: default time for a turn. Seconds.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        pool: TenantPool,
        admission: Admission,
        defaults: Defaults,
        turns: TurnHandler,
        conversations: ConversationStore,
        turn_timeout_s: float,
    ) -> None:
        self._pipeline = pipeline
        self._pool = pool
        self._admission = admission
        self._defaults = defaults
        self._turns = turns
        self._conversations = conversations
        self._turn_timeout_s = turn_timeout_s

    async def Ask(self, request: pb.AskRequest, context: Context) -> AsyncIterator[pb.AskResponse]:
        """Answer one question; yield events as they happen, ``done`` last."""
        if request.HasField("ensemble"):
            ensemble = await self._read(request, partial(read_ensemble, request, self._defaults))
            work = cost.of_ensemble(ensemble, request)
            run = self._pipeline.ensemble(ensemble, deadline.current())
        else:
            ask = await self._read(request, partial(read_ask, request, self._defaults))
            work = cost.of_ask(ask, request)
            run = self._pipeline.ask(ask, deadline.current())
        async with self._admission.admit(work), aclosing(self._counted(request, _ahead(run))) as events:
            async for event in events:
                yield codec.event(event)

    async def Audit(self, request: pb.AuditRequest, context: Context) -> AsyncIterator[pb.AuditResponse]:
        """Sample rankings of one labelled query; yield the outcome of each, ``done`` last."""
        audit = await self._read(request.ask, partial(audit_codec.read_audit, request, self._defaults))
        async with self._admission.admit(cost.of_audit(audit, request)):
            try:
                run = self._pipeline.audit(audit, deadline.current())
                async with aclosing(_ahead(run, most=_AHEAD)) as events:
                    async for event in events:
                        yield audit_codec.event(event)
            except MeshError as error:
                raise audit_codec.of_ask(error) from error

    async def Converse(
        self, request_iterator: AsyncIterator[pb.ConverseRequest], context: Context
    ) -> AsyncIterator[pb.ConverseResponse]:
        """Run the turns of one conversation; report a turn that fails and continue with the next."""
        tenant = callers.current().tenant
        inbox = Inbox(partial(self._conversations.hold, tenant))
        reader = asyncio.create_task(inbox.fill(request_iterator))
        conversation: Conversation | None = None
        try:
            while (request := await inbox.next(within_s=self._conversations.lifetime_s)) is not None:
                first = conversation is None
                if conversation is None:
                    checks.at_most("conversation_id", request.conversation_id, _MAX_ID_BYTES)
                    conversation = await self._conversations.acquire(tenant, request.conversation_id)
                try:
                    if not first:  # the call itself has counted the first turn
                        await metering.current().begin(spends_tokens=True)
                    async with aclosing(self._turn(conversation, request, inbox)) as events:
                        async for event in events:
                            response = conversation_codec.response(conversation, event)
                            if not isinstance(event, TurnEnd):
                                yield response
                                continue
                            await self._conversations.add(
                                conversation, event.record, event.state, event.relevance
                            )
                            yield response
                            break  # a cancellation that came since then is too late
                except ConversationLost:
                    raise
                except MeshError as error:
                    yield conversation_codec.failed(conversation, error)
        finally:
            try:
                if conversation is not None:
                    await self._conversations.release(conversation)
            finally:
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)
                inbox.drop()

    async def ListEnsembles(
        self, request: pb.ListEnsemblesRequest, context: Context
    ) -> pb.ListEnsemblesResponse:
        """Return the ensembles of the settings, and the sources that expressions can name."""
        return pb.ListEnsemblesResponse(
            ensembles=[
                pb.ConfiguredEnsemble(name=name, members=one.members)
                for name, one in self._defaults.ensembles.items()
            ],
            sources=self._defaults.sources.names,
        )

    async def _read(self, request: pb.AskRequest, read: Callable[[], T], *, more: bytes = b"") -> T:
        """Read a request, in a thread where it could hold up the event loop.

        Args:
            request: the request. An expression takes milliseconds to parse, and an ensemble has up to 20.
            read: reads it.
            more: a request that is read too, and may have an expression.
        """
        parses = bool(request.expression) or request.HasField("ensemble") or bool(more)
        large = request.ByteSize() > _INLINE_BYTES or len(request.candidates.passages) > _INLINE_CANDIDATES
        return await self._pool.run(read) if parses or large else read()

    async def _counted(
        self, request: pb.AskRequest, events: AsyncGenerator[E, None]
    ) -> AsyncGenerator[E, None]:
        """Yield the events of an ask, and count passages that it has found as those that a request has.

        They are held in memory several times, and what they take is known only now. A quarter of what the
        caller may have in flight is the most: an ask that has begun is never too large. One whose passages do
        not fit now is refused: if it waited, with its own work in flight, it could wait for itself.
        """
        with ExitStack() as held:
            async with aclosing(events):
                async for event in events:
                    if isinstance(event, Retrieved) and not request.candidates.passages:
                        work = min(cost.of_pool(event.pool), self._admission.largest // 4)
                        held.enter_context(self._admission.grow(work))
                    yield event

    async def _turn(
        self, conversation: Conversation, request: pb.ConverseRequest, inbox: Inbox
    ) -> AsyncGenerator[TurnEvent, None]:
        if request.conversation_id not in ("", conversation.id):
            raise InvalidField(
                "conversation_id", "is not this stream's; use one stream for each conversation"
            )
        options = conversation.options
        if request.HasField("options"):
            options = conversation_codec.read_options(request.options)

        def read() -> tuple[Ask, bytes]:
            check_bounds(request)
            return conversation_codec.read_turn(request.ask, conversation, self._defaults)

        ask, settings = await self._read(request.ask, read, more=conversation.settings)
        await self._conversations.keep(conversation, settings, options)
        conversation.check_room(ask.question, ask.k)
        conversation.run_id = ask.run_id
        timeout_s = conversation_codec.timeout_s(request, self._turn_timeout_s)
        limit = deadline.Deadline.after(min(timeout_s, deadline.current().remaining()))
        async with self._admission.admit(cost.of_ask(ask, request)):
            turn = self._counted(request.ask, _ahead(self._turns.run(conversation, ask, limit)))
            async with aclosing(turn), aclosing(inbox.until_cancelled(turn)) as events:
                async for event in events:
                    yield event


async def _ahead(events: AsyncGenerator[E, None], *, most: int = 0) -> AsyncGenerator[E, None]:
    """Run the next stage of the pipeline while an event is sent to the caller.

    The call bounds the queue of an ask: a pool, as many answers as were admitted, and their deltas.

    Args:
        events: of the pipeline.
        most: events that wait at a time, [1, inf); 0 for as many as there are.
    """
    waiting: asyncio.Queue[E | None] = asyncio.Queue()
    room = asyncio.Semaphore(most) if most else None

    async def run() -> None:
        try:
            async with aclosing(events):
                async for event in events:
                    if room is not None:
                        await room.acquire()
                    waiting.put_nowait(event)
        finally:
            waiting.put_nowait(None)

    runner = asyncio.create_task(run())
    try:
        while (event := await waiting.get()) is not None:
            if room is not None:
                room.release()
            yield event
        await runner
    finally:
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)
