"""The four upstreams, each behind its port: one channel, messages in and out, errors translated."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, cast

import grpc
import numpy as np

from meshkit import metering
from meshkit.breaker import Breaker, Unanswered
from meshkit.channel import connect
from meshkit.errors import MeshError, Unavailable, from_item_error, from_rpc_error
from meshkit.telemetry import Telemetry
from orchestrator import codec
from orchestrator.courier import Delivered, Line, Outcome, Refused, RunReported
from orchestrator.domain import Agent, Answer, Ask, Passage, Pool, Prompt, Relevance, Sampling
from orchestrator.ensembles.definitions import Voting
from orchestrator.ports import Ballot, Standing
from orchestrator.upstreams import Upstream
from ragmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from ragmesh.evaluator.v1 import evaluator_service_pb2_grpc as evaluator_grpc
from ragmesh.generator.v1 import generator_service_pb2 as generator_pb
from ragmesh.generator.v1 import generator_service_pb2_grpc as generator_grpc
from ragmesh.reranker.v1 import reranker_service_pb2 as reranker_pb
from ragmesh.reranker.v1 import reranker_service_pb2_grpc as reranker_grpc
from ragmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from ragmesh.retriever.v1 import retriever_service_pb2_grpc as retriever_grpc

_DETAILS_KEY: Final = "grpc-status-details-bin"
_LINE_TIMEOUT_S: Final = 60.0

# Where an upstream's field is called otherwise in an ask. What is in neither is no field of the ask.
_RETRIEVER_FIELDS: Final = {"query": "question", "stream_id": None}
_RERANKER_FIELDS: Final = {"query": "question", "passages": None, "top_k": None}
_GENERATOR_FIELDS: Final = {"passages": None, "turns": None, "requests": None}


class RetrieverClient:
    """The retriever, as :class:`orchestrator.ports.Retriever`.

    Args:
        channel: a channel to it, see :meth:`channel_to`.
        upstream: how it fares; what its clients have in common.
    """

    def __init__(self, channel: grpc.aio.Channel, upstream: Upstream | None = None) -> None:
        self._stub = retriever_grpc.RetrieverServiceStub(channel)
        self._upstream = upstream or Upstream(Breaker("retriever"))

    @staticmethod
    def channel_to(target: str, *, max_message_bytes: int, telemetry: Telemetry) -> grpc.aio.Channel:
        """A channel to the retriever at ``target``."""
        service = retriever_pb.DESCRIPTOR.services_by_name["RetrieverService"].full_name
        return connect(
            target,
            service=service,
            idempotent=["Retrieve"],
            max_message_bytes=max_message_bytes,
            telemetry=telemetry,
        )

    async def retrieve(self, ask: Ask, *, k: int, sampling: Sampling | None, timeout_s: float) -> Pool:
        """See the port."""
        request = codec.retrieve_request(ask, k=k, sampling=sampling)

        async def retrieve() -> retriever_pb.RetrieveResponse:
            try:
                return await self._stub.Retrieve(request, timeout=timeout_s)
            except grpc.RpcError as error:
                raise _translated(error, "retriever", _RETRIEVER_FIELDS) from error

        # A search of the web is not made twice: it costs, and may answer otherwise.
        response = await self._upstream.call(retrieve, timeout_s=timeout_s, repeatable=not ask.web)
        return codec.pool(response, id_prefix=ask.id_prefix)


class RerankerClient:
    """The reranker, as :class:`orchestrator.ports.Reranker`.

    Args:
        channel: a channel to it, see :meth:`channel_to`.
        upstream: how it fares; what its clients have in common.
    """

    def __init__(self, channel: grpc.aio.Channel, upstream: Upstream | None = None) -> None:
        self._stub = reranker_grpc.RerankerServiceStub(channel)
        self._upstream = upstream or Upstream(Breaker("reranker"))

    @staticmethod
    def channel_to(target: str, *, max_message_bytes: int, telemetry: Telemetry) -> grpc.aio.Channel:
        """A channel to the reranker at ``target``."""
        service = reranker_pb.DESCRIPTOR.services_by_name["RerankerService"].full_name
        return connect(
            target,
            service=service,
            idempotent=["Rerank"],
            max_message_bytes=max_message_bytes,
            telemetry=telemetry,
        )

    async def rerank(
        self, question: str, passages: Sequence[Passage], *, agent: Agent, reranker: str, timeout_s: float
    ) -> Relevance:
        """See the port."""
        request = codec.rerank_request(question, passages, agent=agent, reranker=reranker)

        async def rerank() -> reranker_pb.RerankResponse:
            try:
                return await self._stub.Rerank(request, timeout=timeout_s)
            except grpc.RpcError as error:
                raise _translated(error, "reranker", _RERANKER_FIELDS) from error

        response = await self._upstream.call(rerank, timeout_s=timeout_s, repeatable=True)
        scores = np.fromiter(response.scores, dtype=np.float64, count=len(response.scores))
        if len(scores) != len(passages) or not np.isfinite(scores).all():
            raise MeshError(
                grpc.StatusCode.INTERNAL, "UPSTREAM_ERROR", "the reranker did not score every passage"
            )
        return Relevance(scores, response.reranker or reranker, response.model_version)


class GeneratorClient:
    """The generator, as :class:`orchestrator.ports.Generator`.

    Args:
        channel: a channel to it, see :meth:`channel_to`.
        upstream: how it fares; what its clients have in common.
    """

    def __init__(self, channel: grpc.aio.Channel, upstream: Upstream | None = None) -> None:
        self._stub = generator_grpc.GeneratorServiceStub(channel)
        self._upstream = upstream or Upstream(Breaker("generator"))

    @staticmethod
    def channel_to(target: str, *, max_message_bytes: int, telemetry: Telemetry) -> grpc.aio.Channel:
        """A channel to the generator at ``target``. Writing an answer has no effect but the answer."""
        service = generator_pb.DESCRIPTOR.services_by_name["GeneratorService"].full_name
        return connect(
            target,
            service=service,
            idempotent=["Generate", "GenerateBatch"],
            max_message_bytes=max_message_bytes,
            telemetry=telemetry,
        )

    async def stream(self, prompt: Prompt, *, timeout_s: float) -> AsyncGenerator[str | Answer, None]:
        """See the port."""
        request = codec.generate_request(prompt)
        with self._upstream.breaker.watch(timeout_s) as answered:
            call = self._stub.Generate(request, timeout=timeout_s)
            try:
                async for part in call:
                    answered()
                    if part.HasField("answer"):
                        _paid(part.answer)
                        yield part.answer
                    else:
                        yield part.delta
            except grpc.RpcError as error:
                raise _translated(error, "generator", _GENERATOR_FIELDS) from error
            finally:
                call.cancel()

    async def batch(self, prompts: Sequence[Prompt], *, timeout_s: float) -> Sequence[Answer | MeshError]:
        """See the port."""
        request = generator_pb.GenerateBatchRequest(
            requests=[codec.generate_request(prompt) for prompt in prompts]
        )
        response = await self._batch(request, timeout_s)
        if len(response.results) != len(prompts):
            raise MeshError(
                grpc.StatusCode.INTERNAL, "UPSTREAM_ERROR", "the generator did not answer every context"
            )
        return [
            result.answer
            if result.HasField("answer")
            else _renamed(from_item_error(result.error), _GENERATOR_FIELDS)
            for result in response.results
        ]

    async def knowledge(self, ask: Ask, *, most: int, timeout_s: float) -> Pool:
        """See the port."""
        response = await self._batch(codec.knowledge_request(ask), timeout_s)
        if len(response.results) != 1:
            raise MeshError(
                grpc.StatusCode.INTERNAL, "UPSTREAM_ERROR", "the generator did not write a document"
            )
        (result,) = response.results
        if not result.HasField("answer"):
            raise _renamed(from_item_error(result.error), _GENERATOR_FIELDS)
        return codec.knowledge(result.answer, most=most)

    async def _batch(
        self, request: generator_pb.GenerateBatchRequest, timeout_s: float
    ) -> generator_pb.GenerateBatchResponse:
        async def generate() -> generator_pb.GenerateBatchResponse:
            try:
                return await self._stub.GenerateBatch(request, timeout=timeout_s)
            except grpc.RpcError as error:
                raise _translated(error, "generator", _GENERATOR_FIELDS) from error

        response = await self._upstream.call(generate, timeout_s=timeout_s)
        for result in response.results:
            if result.HasField("answer"):
                _paid(result.answer)
        return response


class EvaluatorClient:
    """The evaluator, as :class:`orchestrator.courier.Evaluator`.

    Args:
        channel: a channel to it, see :meth:`channel_to`.
        upstream: how it fares; what its clients have in common.
    """

    def __init__(self, channel: grpc.aio.Channel, upstream: Upstream | None = None) -> None:
        self._channel = channel
        self._stub = evaluator_grpc.EvaluatorServiceStub(channel)
        self._upstream = upstream or Upstream(Breaker("evaluator"))

    @staticmethod
    def channel_to(target: str, *, max_message_bytes: int, telemetry: Telemetry) -> grpc.aio.Channel:
        """A channel to the evaluator at ``target``. The courier does its own sending again."""
        service = evaluator_pb.DESCRIPTOR.services_by_name["EvaluatorService"].full_name
        return connect(target, service=service, max_message_bytes=max_message_bytes, telemetry=telemetry)

    def call(self) -> Line:
        """See the port."""
        return _ObserveLine(self._stub.Observe(timeout=_LINE_TIMEOUT_S))

    def open(self, question: str, voting: Voting, *, timeout_s: float) -> Ballot:
        """A vote, as :class:`orchestrator.ports.Votes` has it."""
        call = self._stub.VoteAnytime(timeout=timeout_s)
        return _EvaluatorBallot(call, codec.vote_start(question, voting), self._upstream.breaker, timeout_s)

    async def evaluate(
        self, request: evaluator_pb.EvaluateConversationRequest, *, timeout_s: float
    ) -> evaluator_pb.EvaluateConversationResponse:
        """A conversation measured, as :class:`orchestrator.conversations.talk.Measures` has it."""

        async def evaluate() -> evaluator_pb.EvaluateConversationResponse:
            try:
                return await self._stub.EvaluateConversation(request, timeout=timeout_s)
            except grpc.RpcError as error:
                raise _translated(error, "evaluator", {}) from error

        return await self._upstream.call(evaluate, timeout_s=timeout_s)

    async def watch(self, on_change: Callable[[bool], None]) -> None:
        """See the port."""
        reachable: bool | None = None
        while True:
            state = self._channel.get_state(try_to_connect=True)
            now = reachable
            if state is grpc.ChannelConnectivity.READY:
                now = True
            elif state is grpc.ChannelConnectivity.TRANSIENT_FAILURE or reachable is not None:
                # While it connects for the first time nothing is known; later it means that a connection
                # broke.
                now = False
            if now is not None and now is not reachable:
                reachable = now
                on_change(now)
            await self._channel.wait_for_state_change(state)


class _EvaluatorBallot:
    """One VoteAnytime stream."""

    def __init__(
        self,
        call: grpc.aio.StreamStreamCall[Any, Any],
        start: evaluator_pb.VoteAnytimeRequest,
        breaker: Breaker,
        timeout_s: float,
    ) -> None:
        self._call = call
        self._start: evaluator_pb.VoteAnytimeRequest | None = start
        self._breaker = breaker
        self._timeout_s = timeout_s

    async def cast(self, member: int, answer: str | None) -> Standing:
        with self._breaker.watch(self._timeout_s):
            return await self._cast(member, answer)

    async def _cast(self, member: int, answer: str | None) -> Standing:
        try:
            if self._start is not None:
                await self._call.write(self._start)
                self._start = None
            await self._call.write(codec.vote_answer(member, answer))
            response: Any = await self._call.read()
        except (grpc.aio.UsageError, asyncio.InvalidStateError) as error:  # the call is over
            raise Unavailable("UPSTREAM_UNAVAILABLE", "the evaluator ended the vote") from error
        except grpc.RpcError as error:
            raise _translated(error, "evaluator", {}) from error
        if response is grpc.aio.EOF:
            raise Unavailable("UPSTREAM_UNAVAILABLE", "the evaluator ended the vote")
        return Standing(response.winner if response.HasField("winner") else None, response.decided)

    def close(self) -> None:
        self._call.cancel()


class _ObserveLine:
    """One Observe stream."""

    def __init__(self, call: grpc.aio.StreamStreamCall[Any, Any]) -> None:
        self._call = call

    async def send(self, payload: bytes, *, want_report: bool) -> bool:
        request = evaluator_pb.ObserveRequest(want_report=want_report)
        request.observation.MergeFromString(payload)
        try:
            await self._call.write(request)
        except (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError):  # the call is over
            return False
        return True

    async def outcomes(self) -> AsyncIterator[Outcome]:
        try:
            async for response in self._call:
                match response.WhichOneof("event"):
                    case "ack":
                        yield Delivered(response.ack.observation_id)
                    case "refusal":
                        refusal = response.refusal
                        yield Refused(refusal.observation_id, from_item_error(refusal.error))
                    case "report":
                        yield RunReported(response.report)
        except grpc.RpcError as error:
            raise _translated(error, "evaluator", {}) from error

    async def hang_up(self) -> None:
        await self._call.done_writing()

    def cut(self) -> None:
        self._call.cancel()


def _translated(error: grpc.RpcError, who: str, fields: Mapping[str, str | None]) -> MeshError:
    """What a failed call means to the caller of an ask.

    An error of our own services keeps its code, reason and words, with the ask's name for the field. Anything
    else comes from the transport, whose words may hold addresses.
    """
    call_error = cast(grpc.aio.AioRpcError, error)
    code = call_error.code()
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        # The caller was let in here: it is this process that was not let in there.
        return Unavailable("UPSTREAM_REFUSED", f"the {who} does not take the orchestrator's own credential")
    if any(key == _DETAILS_KEY for key, _ in call_error.trailing_metadata() or ()):
        return _renamed(from_rpc_error(error), fields)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return MeshError(code, "BUDGET_EXCEEDED", f"the {who} did not answer within its share of the time")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return MeshError(code, "UPSTREAM_EXHAUSTED", f"a message to or from the {who} is too large")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return Unavailable("UPSTREAM_UNIMPLEMENTED", f"what answers at the {who}'s address is no {who}")
    # A process that is killed in the middle of a call shows as several codes, UNKNOWN and INTERNAL among
    # them.
    return Unanswered("UPSTREAM_UNAVAILABLE", f"the {who} is unavailable")


def _paid(answer: generator_pb.Answer) -> None:
    """Notes for whoever called what an answer cost."""
    metering.current().spend(answer.prompt_tokens + answer.completion_tokens)


def _renamed(error: MeshError, fields: Mapping[str, str | None]) -> MeshError:
    """The error with the ask's name for its field, and without the upstream's in its words."""
    if error.field is None:
        return error
    field: str | None = re.sub(r"^requests\[\d+\]\.", "", error.field)
    head = re.split(r"[.\[]", field or "", maxsplit=1)[0]
    if head in fields:
        field = fields[head]
    words = error.message.removeprefix(f"{error.field}: ")
    return MeshError(error.code, error.reason, words, field=field, retry_after_s=error.retry_after_s)
