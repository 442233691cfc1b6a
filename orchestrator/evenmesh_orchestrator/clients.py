"""Clients of the four upstreams: each sends over one channel, translates errors, and implements its port."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, TypeVar, cast

import grpc
import numpy as np
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evenmesh.common.v1.common_pb2 import Passage
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as evaluator_grpc
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb
from evenmesh.generator.v1 import generator_service_pb2_grpc as generator_grpc
from evenmesh.reranker.v1 import reranker_service_pb2 as reranker_pb
from evenmesh.reranker.v1 import reranker_service_pb2_grpc as reranker_grpc
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from evenmesh.retriever.v1 import retriever_service_pb2_grpc as retriever_grpc
from evenmesh.wire.call_ends import CallEnd
from evenmesh.wire.channel import DEFAULT_MAX_MESSAGE_BYTES, connect
from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import MeshError, NotFound, Unavailable, from_item_error, from_rpc_error
from evenmesh.wire.methods import facts_of
from evenmesh.wire.pieces import in_pieces
from evenmesh.wire.stream import Stream
from evenmesh_core.exposure_balance import ExposureBalance
from evenmesh_kit.admission import metering
from evenmesh_kit.admission.queue import Admitted
from evenmesh_kit.rpc.breaker import Breaker, Unanswered
from evenmesh_kit.rpc.guard import MESSAGE_LIMIT_KEY
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_orchestrator import codec
from evenmesh_orchestrator.domain import Ask, FirstStage, Pool, Relevance, Sampling
from evenmesh_orchestrator.observations.relay import ObserveStream
from evenmesh_orchestrator.ports import VoteSession, VoteState
from evenmesh_orchestrator.upstreams import Upstream

T = TypeVar("T")

_DETAILS_KEY: Final = "grpc-status-details-bin"
_OBSERVE_TIMEOUT_S: Final = 60.0
_HEALTH_TIMEOUT_S: Final = 5.0
_LEAST_S: Final = 0.001


class _Client:
    """A client of one upstream.

    Args:
        channel: a channel to it, see :meth:`channel_to`.
        upstream: its breaker and hedging, shared by its clients.
    """

    NAME: ClassVar[str]
    SERVICE: ClassVar[ServiceDescriptor]
    FIELDS: ClassVar[Mapping[str, str | None]] = {}
    """The ask's name of an upstream's field; None where the ask has no such field."""

    def __init__(self, channel: grpc.aio.Channel, upstream: Upstream | None = None) -> None:
        self._channel = channel
        self._upstream = upstream or Upstream(Breaker(self.NAME))

    @classmethod
    def channel_to(cls, target: str, *, max_message_bytes: int, telemetry: Telemetry) -> grpc.aio.Channel:
        """Return a channel to the upstream at ``target``."""
        return connect(
            target,
            service=cls.SERVICE.full_name,
            max_message_bytes=max_message_bytes,
            telemetry=telemetry,
        )

    async def _call(
        self,
        method: Callable[..., Awaitable[T]],
        request: object,
        *,
        timeout_s: float,
        again: bool = True,
        hedged: bool = False,
    ) -> T:
        """Make a unary call through the breaker.

        Args:
            method: of the stub.
            request: what it takes.
            timeout_s: for all attempts. Seconds.
            again: whether it is made once more where the process or the connection ends meanwhile: gRPC does
                so by itself only where the status is UNAVAILABLE and nothing of the answer has come.
            hedged: whether a second one may be made while the first is slow.
        """
        ends = time.monotonic() + timeout_s

        async def call() -> T:
            try:
                return await method(request, timeout=max(_LEAST_S, ends - time.monotonic()))
            except grpc.RpcError as error:
                raise _translated(error, self.NAME, self.FIELDS) from error

        try:
            return await self._upstream.call(call, timeout_s=timeout_s, repeatable=hedged)
        except Unanswered:
            left_s = ends - time.monotonic()
            if not again or left_s <= _LEAST_S:
                raise
        return await self._upstream.call(call, timeout_s=left_s)


class RetrieverClient(_Client):
    """The retriever, as :class:`evenmesh_orchestrator.ports.Retriever`."""

    NAME = "retriever"
    SERVICE = retriever_pb.DESCRIPTOR.services_by_name["RetrieverService"]
    FIELDS: ClassVar[Mapping[str, str | None]] = {"query": "question", "stream_id": None}

    def __init__(self, channel: grpc.aio.Channel, upstream: Upstream | None = None) -> None:
        super().__init__(channel, upstream)
        self._stub = retriever_grpc.RetrieverServiceStub(channel)

    async def retrieve(self, ask: Ask, *, k: int, sampling: Sampling | None, timeout_s: float) -> Pool:
        """Retrieve; see the port."""
        request = codec.retrieve_request(ask, k=k, sampling=sampling)
        # A web search is never repeated: it costs money, and its results may differ.
        response = await self._call(
            self._stub.Retrieve, request, timeout_s=timeout_s, again=not ask.web, hedged=not ask.web
        )
        return codec.pool(response, id_prefix=ask.id_prefix)


class RerankerClient(_Client):
    """The reranker, as :class:`evenmesh_orchestrator.ports.Reranker`."""

    NAME = "reranker"
    SERVICE = reranker_pb.DESCRIPTOR.services_by_name["RerankerService"]
    FIELDS: ClassVar[Mapping[str, str | None]] = {"query": "question", "passages": None, "top_k": None}

    def __init__(self, channel: grpc.aio.Channel, upstream: Upstream | None = None) -> None:
        super().__init__(channel, upstream)
        self._stub = reranker_grpc.RerankerServiceStub(channel)

    async def rerank(
        self, ask: Ask, passages: Sequence[Passage], *, timeout_s: float, first: FirstStage | None = None
    ) -> Relevance:
        """Rerank; see the port."""
        until = Deadline.after(timeout_s)

        async def scored(some: Sequence[int]) -> Relevance:
            request = codec.rerank_request(
                ask,
                [passages[at] for at in some],
                None if first is None else replace(first, scores=first.scores[list(some)]),
            )
            left_s = until.budget(margin_s=0.0)
            response = await self._call(self._stub.Rerank, request, timeout_s=left_s, hedged=True)
            scores = np.fromiter(response.scores, dtype=np.float64, count=len(response.scores))
            if len(scores) != len(some) or not np.isfinite(scores).all():
                raise _upstream_error("the reranker did not score every passage")
            return Relevance(
                scores, response.reranker or ask.reranker, response.model_version, response.fusion
            )

        pieces = await in_pieces(range(len(passages)), scored)
        *_, (_, last) = pieces
        # Scores of two versions cannot be compared: one may be promoted between two calls.
        parts = [
            one if one.model_version == last.model_version else await scored(some) for some, one in pieces
        ]
        if any(one.model_version != last.model_version for one in parts):
            raise _upstream_error("the reranker changed its model twice during one ranking")
        scores = np.concatenate([one.scores for one in parts])
        return Relevance(scores, last.reranker, last.model_version, last.fusion)


class GeneratorClient(_Client):
    """The generator, as :class:`evenmesh_orchestrator.ports.Generator` and ``Models``."""

    NAME = "generator"
    SERVICE = generator_pb.DESCRIPTOR.services_by_name["GeneratorService"]
    FIELDS: ClassVar[Mapping[str, str | None]] = {"passages": None, "turns": None, "requests": None}

    def __init__(self, channel: grpc.aio.Channel, upstream: Upstream | None = None) -> None:
        super().__init__(channel, upstream)
        self._stub = generator_grpc.GeneratorServiceStub(channel)
        self._models: frozenset[str] = frozenset()

    async def check_model(self, name: str, *, timeout_s: float) -> None:
        """Check that there is a model; see the port.

        Names of the last list cost no call. No name is refused by an old list: a replica may have new models.
        """
        if name in self._models:
            return
        try:
            listed = await self._call(
                self._stub.ListModels, generator_pb.ListModelsRequest(), timeout_s=timeout_s, again=False
            )
        except MeshError:
            return
        self._models = frozenset(one.name for one in listed.models)
        if name not in self._models:
            known = ", ".join(one.name for one in listed.models)
            raise NotFound("model", f"no model {name!r}; there are {known}")

    async def stream(
        self, prompt: generator_pb.GenerateRequest, *, timeout_s: float
    ) -> AsyncGenerator[str | generator_pb.Answer, None]:
        """Stream an answer; see the port."""
        until = Deadline.after(timeout_s)
        async with self._upstream.watched(timeout_s) as answered:
            call = self._stub.Generate(prompt, timeout=until.budget(margin_s=0.0))
            try:
                async for part in call:
                    answered()
                    if part.HasField("answer"):
                        _charge(part.answer)
                        yield part.answer
                    else:
                        yield part.delta
            except grpc.RpcError as error:
                raise _translated(error, self.NAME, self.FIELDS) from error
            finally:
                call.cancel()

    async def batch(
        self, prompts: Sequence[generator_pb.GenerateRequest], *, timeout_s: float
    ) -> Sequence[generator_pb.Answer | MeshError]:
        """Answer several prompts; see the port."""
        until = Deadline.after(timeout_s)

        async def answered(
            some: Sequence[generator_pb.GenerateRequest],
        ) -> Sequence[generator_pb.GenerateBatchResult]:
            request = generator_pb.GenerateBatchRequest(requests=some)
            response = await self._call(
                self._stub.GenerateBatch, request, timeout_s=until.budget(margin_s=0.0)
            )
            if len(response.results) != len(some):
                raise _upstream_error("the generator did not answer every context")
            return response.results

        results = [result for _, some in await in_pieces(prompts, answered) for result in some]
        answers: list[generator_pb.Answer | MeshError] = []
        for result in results:
            if result.HasField("answer"):
                _charge(result.answer)
                answers.append(result.answer)
            else:
                answers.append(_renamed(from_item_error(result.error), self.FIELDS))
        return answers

    async def knowledge(self, ask: Ask, *, max_passages: int, timeout_s: float) -> Pool:
        """Write what the model knows; see the port."""
        (answer,) = await self.batch([codec.knowledge_prompt(ask)], timeout_s=timeout_s)
        if isinstance(answer, MeshError):
            raise answer
        return codec.knowledge(answer, max_passages=max_passages)


class EvaluatorClient(_Client):
    """The evaluator: observations, votes and measurements of conversations.

    It implements :class:`evenmesh_orchestrator.observations.relay.Evaluator`,
    :class:`evenmesh_orchestrator.ports.VoteSessions`, :class:`evenmesh_orchestrator.ports.Balances` and
    :class:`evenmesh_orchestrator.conversations.evaluation.ConversationEvaluator`. Its channel repeats no
    call: the outbox relay sends observations again itself.
    """

    NAME = "evaluator"
    SERVICE = evaluator_pb.DESCRIPTOR.services_by_name["EvaluatorService"]

    def __init__(self, channel: grpc.aio.Channel, upstream: Upstream | None = None) -> None:
        super().__init__(channel, upstream)
        self._stub = evaluator_grpc.EvaluatorServiceStub(channel)
        self._health = health_pb2_grpc.HealthStub(channel)
        facts = facts_of(f"/{self.SERVICE.full_name}/Observe")
        self._max_message_bytes = facts.max_request_bytes or DEFAULT_MAX_MESSAGE_BYTES

    @property
    def gives_reports(self) -> bool:
        """Whether a report can follow an observation; see the port."""
        return True

    @property
    def max_message_bytes(self) -> int:
        """The largest observation that the evaluator accepts: the contract's, or what it last said."""
        return self._max_message_bytes

    async def is_serving(self) -> bool:
        """Check the health of the evaluator; see the port."""
        try:
            reply = await self._health.Check(
                health_pb2.HealthCheckRequest(service=self.SERVICE.full_name), timeout=_HEALTH_TIMEOUT_S
            )
        except grpc.RpcError:
            return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def observe(self) -> ObserveStream:
        """Open a stream for observations; see the port."""
        return _ObserveCall(self._stub.Observe(timeout=_OBSERVE_TIMEOUT_S), self._learn)

    def _learn(self, trailers: Iterable[tuple[str, str | bytes]] | None) -> None:
        for key, value in trailers or ():
            if key == MESSAGE_LIMIT_KEY:
                facts = facts_of(f"/{self.SERVICE.full_name}/Observe")
                self._max_message_bytes = min(facts.max_request_bytes or int(value), int(value))

    def open_vote(self, vote: evaluator_pb.VoteRequest, *, timeout_s: float) -> VoteSession:
        """Open a vote; see the port."""
        return _VoteCall(self._stub.VoteAnytime, codec.vote_start(vote), self._upstream, timeout_s)

    async def balance(self, collection: str, half_life_days: float, *, timeout_s: float) -> ExposureBalance:
        """Return what the providers of a collection are owed; see the port."""
        request = evaluator_pb.GetExposureBalanceRequest(collection=collection, half_life_days=half_life_days)
        found = await self._call(self._stub.GetExposureBalance, request, timeout_s=timeout_s)
        return codec.exposure_balance(found)

    async def evaluate(
        self, request: evaluator_pb.EvaluateConversationRequest, *, timeout_s: float
    ) -> evaluator_pb.EvaluateConversationResponse:
        """Measure a conversation; see the port."""
        return await self._call(self._stub.EvaluateConversation, request, timeout_s=timeout_s)

    async def watch(self, on_change: Callable[[bool], None]) -> None:
        """Watch the connection; see the port."""
        reachable: bool | None = None
        while True:
            state = self._channel.get_state(try_to_connect=True)
            now = reachable
            if state is grpc.ChannelConnectivity.READY:
                now = True
            elif state is grpc.ChannelConnectivity.TRANSIENT_FAILURE or reachable is not None:
                # Nothing is known while it connects for the first time; later a connection broke.
                now = False
            if now is not None and now is not reachable:
                reachable = now
                on_change(now)
            await self._channel.wait_for_state_change(state)


class _VoteCall:
    """One VoteAnytime stream. It begins with the first answer, and holds one of the calls until closed."""

    def __init__(
        self,
        method: Callable[..., Any],
        start: evaluator_pb.VoteAnytimeRequest,
        upstream: Upstream,
        timeout_s: float,
    ) -> None:
        self._method = method
        self._start = start
        self._upstream = upstream
        self._until = Deadline.after(timeout_s)
        self._turn: Admitted | None = None
        self._stream: Stream | None = None

    async def add(self, member: int, answer: str | None) -> VoteState:
        if self._turn is None:
            self._upstream.breaker.check()
            turn = self._upstream.turn()
            await turn.__aenter__()
            self._turn = turn
        with self._upstream.breaker.watch(self._until.remaining()):
            try:
                if self._stream is None:
                    self._stream = Stream(self._method(timeout=self._until.budget(margin_s=0.0)))
                    await self._stream.write(self._start)
                await self._stream.write(codec.vote_answer(member, answer))
                response: Any = await self._stream.read()
            except grpc.RpcError as error:
                raise _translated(error, "evaluator", {}) from error
            if response is None:
                raise Unavailable("UPSTREAM_UNAVAILABLE", "the evaluator ended the vote")
        return VoteState(
            response.winner if response.HasField("winner") else None,
            response.decided,
            tuple(response.scores),
            tuple(response.similarities),
        )

    def close(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
        if self._turn is not None:
            self._turn.__exit__()
            self._turn = None


class _ObserveCall:
    """One Observe stream."""

    def __init__(
        self,
        call: grpc.aio.StreamStreamCall[Any, Any],
        on_end: Callable[[Iterable[tuple[str, str | bytes]] | None], None],
    ) -> None:
        self._call = call
        self._end = CallEnd(call)
        self._on_end = on_end

    async def send(self, payload: bytes, *, want_report: bool) -> bool:
        request = evaluator_pb.ObserveRequest(want_report=want_report)
        request.observation.MergeFromString(payload)
        try:
            await self._call.write(request)
        except (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError):  # the call is over
            return False
        return True

    async def responses(self) -> AsyncIterator[evaluator_pb.ObserveResponse]:
        try:
            async for response in self._call:
                yield response
            self._on_end(await self._call.trailing_metadata())
        except grpc.RpcError as raised:
            error = self._end.error(raised)
            if error is None:
                return
            self._on_end(cast(grpc.aio.AioRpcError, error).trailing_metadata())
            raise _translated(error, "evaluator", {}) from error

    async def finish(self) -> None:
        await self._call.done_writing()

    def cancel(self) -> None:
        self._call.cancel()


def _translated(error: grpc.RpcError, name: str, fields: Mapping[str, str | None]) -> MeshError:
    """Return the error of a failed call in terms of the ask.

    An error of our own services keeps its code, reason and words, with the ask's name for the field. Any
    other error comes from the transport, whose words may hold addresses and are not passed on.
    """
    call_error = cast(grpc.aio.AioRpcError, error)
    code = call_error.code()
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        # The caller has access here; it is this process that lacks access there.
        return Unavailable("UPSTREAM_REFUSED", f"the {name} rejects the orchestrator's credential")
    if any(key == _DETAILS_KEY for key, _ in call_error.trailing_metadata() or ()):
        return _renamed(from_rpc_error(error), fields)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return MeshError(code, "BUDGET_EXCEEDED", f"the {name} did not answer within its share of the time")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return MeshError(code, "UPSTREAM_EXHAUSTED", f"a message to or from the {name} is too large")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return Unavailable("UPSTREAM_UNIMPLEMENTED", f"the server at the {name}'s address is no {name}")
    # A process that is killed during a call shows as several codes, among them UNKNOWN and INTERNAL.
    return Unanswered("UPSTREAM_UNAVAILABLE", f"the {name} is unavailable")


def _upstream_error(message: str) -> MeshError:
    return MeshError(grpc.StatusCode.INTERNAL, "UPSTREAM_ERROR", message)


def _charge(answer: generator_pb.Answer) -> None:
    """Charge the caller for the tokens of an answer."""
    metering.current().spend(answer.prompt_tokens + answer.completion_tokens)


def _renamed(error: MeshError, fields: Mapping[str, str | None]) -> MeshError:
    """Return the error with the ask's name for its field, and without the upstream's name in its message."""
    if error.field is None:
        return error
    field: str | None = re.sub(r"^requests\[\d+\]\.", "", error.field)
    head = re.split(r"[.\[]", field or "", maxsplit=1)[0]
    if head in fields:
        field = fields[head]
    words = error.message.removeprefix(f"{error.field}: ")
    return MeshError(error.code, error.reason, words, field=field, retry_after_s=error.retry_after_s)
