"""The clients over real connections: streams that end, connections that come and go, errors in the ask's words."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb
from evenmesh.reranker.v1 import reranker_service_pb2 as reranker_pb
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from evenmesh.wire import deadline
from evenmesh.wire.credentials import TENANT_KEY
from evenmesh.wire.errors import MeshError, NotFound, Overloaded, Unavailable
from evenmesh_kit.admission import metering
from evenmesh_kit.admission.limits import TenantLimits
from evenmesh_kit.admission.metering import Meter
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.rpc import statuses
from evenmesh_kit.rpc.breaker import Breaker, Circuit, Unanswered
from evenmesh_kit.rpc.guard import MESSAGE_LIMIT_KEY
from evenmesh_kit.rpc.hedging import Hedging
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller, Role
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_orchestrator.clients import EvaluatorClient, GeneratorClient, RerankerClient, RetrieverClient
from evenmesh_orchestrator.domain import FirstStage
from evenmesh_orchestrator.observations.relay import ObserveStream
from evenmesh_orchestrator.settings import OrchestratorSettings
from evenmesh_orchestrator.upstreams import Upstream, Upstreams
from tests.support.in_memory_telemetry import InMemoryTelemetry
from tests.unit.orchestrator.fakes import ask, passage


async def _server(port: int = 0, *, streams: int = 1024, **methods: Any) -> tuple[grpc.aio.Server, int]:
    """A server with handlers of the raw kind: service/method to handler; ``streams`` calls a connection."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_concurrent_streams", streams)])
    by_service: dict[str, dict[str, Any]] = {}
    for name, handler in methods.items():
        service, method = name.rsplit("_", 1)
        by_service.setdefault(service.replace("_", "."), {})[method] = handler
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, handlers) for service, handlers in by_service.items()]
    )
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, bound


def _observe(behaviour: Any) -> dict[str, Any]:
    handler = grpc.stream_stream_rpc_method_handler(
        behaviour,
        request_deserializer=evaluator_pb.ObserveRequest.FromString,
        response_serializer=evaluator_pb.ObserveResponse.SerializeToString,
    )
    return {"evenmesh_evaluator_v1_EvaluatorService_Observe": handler}


async def _acknowledging(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
    async for request in requests:
        ack = evaluator_pb.ObserveAck(observation_id=request.observation.id)
        yield evaluator_pb.ObserveResponse(ack=ack)


@pytest.fixture(params=["plain", "traced"])
def telemetry(request: pytest.FixtureRequest) -> Telemetry:
    """Channels behave alike with and without interceptors, which gRPC builds as different calls."""
    return Telemetry.disabled() if request.param == "plain" else InMemoryTelemetry("orchestrator")


def _channel(port: int, telemetry: Telemetry) -> grpc.aio.Channel:
    return EvaluatorClient.channel_to(f"127.0.0.1:{port}", max_message_bytes=2**20, telemetry=telemetry)


async def test_a_stream_delivers_and_ends(telemetry: Telemetry) -> None:
    server, port = await _server(**_observe(_acknowledging))
    async with _channel(port, telemetry) as channel:
        observing = EvaluatorClient(channel).observe()
        payloads = [evaluator_pb.Observation(id=str(i)).SerializeToString() for i in range(3)]
        assert [await observing.send(payload, want_report=False) for payload in payloads] == [True] * 3
        await observing.finish()
        assert [one.ack.observation_id async for one in observing.responses()] == ["0", "1", "2"]
    await server.stop(0)


async def test_a_dead_stream_says_so_and_sends_no_more(telemetry: Telemetry) -> None:
    started = asyncio.Event()

    async def hanging(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for request in _acknowledging(requests, context):
            yield request
            started.set()

    server, port = await _server(**_observe(hanging))
    async with _channel(port, telemetry) as channel:
        observing = EvaluatorClient(channel).observe()
        assert await observing.send(evaluator_pb.Observation(id="a").SerializeToString(), want_report=False)
        received: list[str] = []

        async def receive() -> None:
            async for response in observing.responses():
                received.append(response.ack.observation_id)

        receiver = asyncio.create_task(receive())
        async with asyncio.timeout(30):
            await started.wait()
            await server.stop(0)
            with pytest.raises(Unavailable) as caught:
                await receiver
        assert caught.value.reason == "UPSTREAM_UNAVAILABLE"
        assert received == ["a"]
        assert not await observing.send(b"", want_report=False)
        observing.cancel()


async def test_a_stream_to_nowhere_is_unavailable(telemetry: Telemetry) -> None:
    async with _channel(9, telemetry) as channel:
        observing = EvaluatorClient(channel).observe()
        sending = asyncio.create_task(observing.send(b"", want_report=False))
        with pytest.raises(Unavailable):
            async with asyncio.timeout(30):
                _ = [response async for response in observing.responses()]
        observing.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def test_a_refusal_reaches_a_sender_that_still_sends(telemetry: Telemetry) -> None:
    """A lost refusal would be the evaluator's failure, for which entries are blamed and set aside."""

    async def refusing(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no", ((MESSAGE_LIMIT_KEY, "1000"),))
        yield

    async def send(observing: ObserveStream) -> None:
        payload = evaluator_pb.Observation(id="x" * 30_000).SerializeToString()
        while await observing.send(payload, want_report=False):
            pass

    server, port = await _server(**_observe(refusing))
    async with _channel(port, telemetry) as channel, asyncio.timeout(60):
        for _ in range(40):
            client = EvaluatorClient(channel)
            observing = client.observe()
            sending = asyncio.create_task(send(observing))
            with pytest.raises(MeshError) as caught:
                _ = [response async for response in observing.responses()]
            await sending
            observing.cancel()
            assert (caught.value.reason, client.max_message_bytes) == ("UPSTREAM_EXHAUSTED", 1000)
    await server.stop(0)


@pytest.mark.parametrize("code", [grpc.StatusCode.RESOURCE_EXHAUSTED, None])
async def test_a_vote_says_how_it_ended(telemetry: Telemetry, code: grpc.StatusCode | None) -> None:
    async def ending(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        if code is not None:
            await context.abort(code, "no")
        return
        yield

    handler = grpc.stream_stream_rpc_method_handler(ending)
    server, port = await _server(evenmesh_evaluator_v1_EvaluatorService_VoteAnytime=handler)
    reasons = set()
    async with _channel(port, telemetry) as channel:
        for _ in range(80):
            session = EvaluatorClient(channel).open_vote(evaluator_pb.VoteRequest(), timeout_s=30)
            with pytest.raises(MeshError) as caught:
                await session.add(0, "x" * 100_000)
            session.close()
            reasons.add((caught.value.reason, isinstance(caught.value, Unanswered)))
    expected = "UPSTREAM_UNAVAILABLE" if code is None else "UPSTREAM_EXHAUSTED"
    assert reasons == {(expected, False)}
    await server.stop(0)


async def test_connections_that_come_and_go_are_reported() -> None:
    changes: asyncio.Queue[bool] = asyncio.Queue()
    server, port = await _server(**_observe(_acknowledging))
    async with _channel(port, Telemetry.disabled()) as channel:
        watching = asyncio.create_task(EvaluatorClient(channel).watch(changes.put_nowait))
        async with asyncio.timeout(60):
            assert await changes.get() is True
            await server.stop(0)
            assert await changes.get() is False
            server, _ = await _server(port, **_observe(_acknowledging))
            assert await changes.get() is True
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    await server.stop(0)


async def test_an_absence_from_the_start_is_reported() -> None:
    changes: asyncio.Queue[bool] = asyncio.Queue()
    async with _channel(9, Telemetry.disabled()) as channel:
        watching = asyncio.create_task(EvaluatorClient(channel).watch(changes.put_nowait))
        async with asyncio.timeout(60):
            assert await changes.get() is False
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def _rerank(behaviour: Any) -> dict[str, Any]:
    handler = grpc.unary_unary_rpc_method_handler(
        behaviour,
        request_deserializer=reranker_pb.RerankRequest.FromString,
        response_serializer=reranker_pb.RerankResponse.SerializeToString,
    )
    return {"evenmesh_reranker_v1_RerankerService_Rerank": handler}


@pytest.mark.parametrize("scores", [[], [0.5], [0.5, float("nan")]])
async def test_scores_that_are_none_are_an_error_and_no_order(scores: list[float]) -> None:
    async def broken(request: Any, context: Any) -> reranker_pb.RerankResponse:
        return reranker_pb.RerankResponse(scores=scores)

    server, port = await _server(**_rerank(broken))
    channel = RerankerClient.channel_to(
        f"127.0.0.1:{port}", max_message_bytes=2**20, telemetry=Telemetry.disabled()
    )
    async with channel:
        with pytest.raises(MeshError) as caught:
            await RerankerClient(channel).rerank(ask(), [passage("a"), passage("b")], timeout_s=30)
    assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.INTERNAL, "UPSTREAM_ERROR")
    await server.stop(0)


async def _refuse_many(context: Any, number: int) -> None:
    if number > 2:
        error = MeshError(grpc.StatusCode.RESOURCE_EXHAUSTED, "REQUEST_TOO_LARGE", "send fewer")
        await statuses.abort(context, error)


@pytest.mark.parametrize("promoted_after", [0, 1])
async def test_passages_that_are_too_many_for_a_call_are_scored_by_one_version(promoted_after: int) -> None:
    scored: list[list[str]] = []

    async def scoring(request: Any, context: Any) -> reranker_pb.RerankResponse:
        await _refuse_many(context, len(request.passages))
        version = "new" if len(scored) >= promoted_after else "old"
        scored.append([one.id for one in request.passages])
        first = request.first_stage
        assert (first.mean, first.deviation, request.fusion) == (1.0, 2.0, 0.5)
        assert list(first.scores) == [ord(one.id) for one in request.passages]
        return reranker_pb.RerankResponse(
            scores=[ord(one.id) + (version == "new") / 2 for one in request.passages], model_version=version
        )

    server, port = await _server(**_rerank(scoring))
    channel = RerankerClient.channel_to(
        f"127.0.0.1:{port}", max_message_bytes=2**20, telemetry=Telemetry.disabled()
    )
    async with channel:
        relevance = await RerankerClient(channel).rerank(
            ask(),
            [passage(name) for name in "abcde"],
            timeout_s=30,
            first=FirstStage(np.array([float(ord(name)) for name in "abcde"]), 1.0, 2.0, 0.5),
        )
    assert scored == [["a", "b"], ["c", "d"], ["e"], *([["a", "b"]] if promoted_after else [])]
    assert relevance.scores.tolist() == [ord(name) + 0.5 for name in "abcde"]
    assert relevance.model_version == "new"
    await server.stop(0)


async def test_contexts_that_are_too_many_for_a_call_are_answered_in_order() -> None:
    sizes = []

    async def batch(request: Any, context: Any) -> generator_pb.GenerateBatchResponse:
        sizes.append(len(request.requests))
        await _refuse_many(context, len(request.requests))
        return generator_pb.GenerateBatchResponse(
            results=[
                generator_pb.GenerateBatchResult(answer=generator_pb.Answer(text=one.question))
                for one in request.requests
            ]
        )

    handler = grpc.unary_unary_rpc_method_handler(
        batch,
        request_deserializer=generator_pb.GenerateBatchRequest.FromString,
        response_serializer=generator_pb.GenerateBatchResponse.SerializeToString,
    )
    server, port = await _server(evenmesh_generator_v1_GeneratorService_GenerateBatch=handler)
    channel = GeneratorClient.channel_to(
        f"127.0.0.1:{port}", max_message_bytes=2**20, telemetry=Telemetry.disabled()
    )
    async with channel:
        prompts = [generator_pb.GenerateRequest(question=f"q{at}") for at in range(5)]
        answers = await GeneratorClient(channel).batch(prompts, timeout_s=30)
    assert [getattr(one, "text", None) for one in answers] == [f"q{at}" for at in range(5)]
    assert sizes == [5, 3, 2, 2, 1]
    await server.stop(0)


async def test_a_name_is_looked_up_once_and_refused_by_a_new_list_alone() -> None:
    models, calls = ["small"], 0

    async def listed(request: Any, context: Any) -> generator_pb.ListModelsResponse:
        nonlocal calls
        calls += 1
        return generator_pb.ListModelsResponse(models=[generator_pb.Model(name=one) for one in models])

    handler = grpc.unary_unary_rpc_method_handler(
        listed,
        request_deserializer=generator_pb.ListModelsRequest.FromString,
        response_serializer=generator_pb.ListModelsResponse.SerializeToString,
    )
    server, port = await _server(evenmesh_generator_v1_GeneratorService_ListModels=handler)
    options = {"max_message_bytes": 2**20, "telemetry": Telemetry.disabled()}
    async with GeneratorClient.channel_to(f"127.0.0.1:{port}", **options) as channel:
        client = GeneratorClient(channel)
        for _ in range(3):
            await client.check_model("small", timeout_s=30)
        assert calls == 1
        with pytest.raises(NotFound, match="no model 'large'; there are small") as refused:
            await client.check_model("large", timeout_s=30)
        assert refused.value.field == "model"
        models.append("large")
        await client.check_model("large", timeout_s=30)
        assert calls == 3
        await server.stop(0)
        await client.check_model("other", timeout_s=0.5)  # nobody answers: its call will tell


async def _aborting(code: grpc.StatusCode) -> tuple[grpc.aio.Server, int]:
    async def behaviour(request: Any, context: Any) -> None:
        await context.abort(code, "internals at 10.0.0.1:5432")

    return await _server(**_rerank(behaviour))


@pytest.mark.parametrize(
    ("code", "reported"),
    [
        (grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE),
        (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE),
        (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.DEADLINE_EXCEEDED),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE),
        # Of this process, not of its caller, who could do nothing about it.
        (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE),
        (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_words_of_the_transport_stay_inside(code: grpc.StatusCode, reported: grpc.StatusCode) -> None:
    server, port = await _aborting(code)
    channel = RerankerClient.channel_to(
        f"127.0.0.1:{port}", max_message_bytes=2**20, telemetry=Telemetry.disabled()
    )
    async with channel:
        with pytest.raises(MeshError) as caught:
            await RerankerClient(channel).rerank(ask(), [passage("a")], timeout_s=30)
    assert caught.value.code is reported
    assert "10.0.0.1" not in str(caught.value)
    await server.stop(0)


async def test_what_does_not_listen_is_unavailable() -> None:
    channel = RetrieverClient.channel_to(
        "127.0.0.1:9", max_message_bytes=2**20, telemetry=Telemetry.disabled()
    )
    async with channel:
        with pytest.raises(Unavailable) as caught:
            await RetrieverClient(channel).retrieve(ask(), k=5, sampling=None, timeout_s=30)
    assert caught.value.reason == "UPSTREAM_UNAVAILABLE"
    assert "127.0.0.1" not in caught.value.message


async def _ranked(client: RerankerClient, *, timeout_s: float = 30) -> list[float]:
    relevance = await client.rerank(ask(), [passage("a")], timeout_s=timeout_s)
    return [float(score) for score in relevance.scores]


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN])
async def test_a_call_whose_process_ends_is_made_once_more(code: grpc.StatusCode) -> None:
    """gRPC makes none again that ends so."""
    calls = 0

    async def ending(request: Any, context: Any) -> reranker_pb.RerankResponse:
        nonlocal calls
        calls += 1
        if calls % 3:  # the first and the second of three
            await context.abort(code, "Stream removed")
        return reranker_pb.RerankResponse(scores=[0.5])

    server, port = await _server(**_rerank(ending))
    options = {"max_message_bytes": 2**20, "telemetry": Telemetry.disabled()}
    async with RerankerClient.channel_to(f"127.0.0.1:{port}", **options) as channel:
        client = RerankerClient(channel)
        with pytest.raises(Unanswered):
            await _ranked(client)
        assert calls == 2
        assert await _ranked(client) == [0.5]
        calls = 1
        assert await _ranked(client) == [0.5]
        assert calls == 3
    await server.stop(0)


@pytest.mark.parametrize(("reason", "made"), [("WEB_UNAVAILABLE", 1), ("MILVUS_UNAVAILABLE", 5)])
async def test_a_channel_does_not_repeat_a_search_of_the_web(reason: str, made: int) -> None:
    """It costs money, and of what is sent again all tenants of a channel have one budget."""
    calls = 0

    async def away(request: Any, context: Any) -> retriever_pb.RetrieveResponse:
        nonlocal calls
        calls += 1
        await statuses.abort(context, Unavailable(reason, "away"))
        raise AssertionError

    handler = grpc.unary_unary_rpc_method_handler(
        away,
        request_deserializer=retriever_pb.RetrieveRequest.FromString,
        response_serializer=retriever_pb.RetrieveResponse.SerializeToString,
    )
    server, port = await _server(evenmesh_retriever_v1_RetrieverService_Retrieve=handler)
    options = {"max_message_bytes": 2**20, "telemetry": Telemetry.disabled()}
    async with RetrieverClient.channel_to(f"127.0.0.1:{port}", **options) as channel:
        with pytest.raises(Unavailable) as caught:
            await RetrieverClient(channel).retrieve(
                replace(ask(), web="searx"), k=5, sampling=None, timeout_s=30
            )
    assert (caught.value.reason, calls) == (reason, made)
    await server.stop(0)


async def test_a_search_of_the_web_whose_process_ends_is_not_made_again() -> None:
    calls = 0

    async def ending(request: Any, context: Any) -> retriever_pb.RetrieveResponse:
        nonlocal calls
        calls += 1
        await context.abort(grpc.StatusCode.INTERNAL, "Stream removed")

    handler = grpc.unary_unary_rpc_method_handler(
        ending,
        request_deserializer=retriever_pb.RetrieveRequest.FromString,
        response_serializer=retriever_pb.RetrieveResponse.SerializeToString,
    )
    server, port = await _server(evenmesh_retriever_v1_RetrieverService_Retrieve=handler)
    options = {"max_message_bytes": 2**20, "telemetry": Telemetry.disabled()}
    async with RetrieverClient.channel_to(f"127.0.0.1:{port}", **options) as channel:
        for asked, made in ((replace(ask(), web="searx"), 1), (ask(), 3)):
            with pytest.raises(Unanswered):
                await RetrieverClient(channel).retrieve(asked, k=5, sampling=None, timeout_s=30)
            assert calls == made
    await server.stop(0)


async def test_a_silent_upstream_is_not_called_and_found_again() -> None:
    calls = 0

    async def scoring(request: Any, context: Any) -> reranker_pb.RerankResponse:
        nonlocal calls
        calls += 1
        return reranker_pb.RerankResponse(scores=[0.5])

    async def hanging(request: Any, context: Any) -> reranker_pb.RerankResponse:
        nonlocal calls
        calls += 1
        await asyncio.Event().wait()
        raise AssertionError

    telemetry = InMemoryTelemetry("orchestrator")
    settings = OrchestratorSettings(breaker_failures=2, breaker_open_s=3, breaker_slow_s=0.05)
    upstream = Upstreams(settings, telemetry.meter).reranker
    server, port = await _server(**_rerank(hanging))
    options = {"max_message_bytes": 2**20, "telemetry": Telemetry.disabled()}
    async with RerankerClient.channel_to(f"127.0.0.1:{port}", **options) as channel:
        async with asyncio.timeout(30):
            await channel.channel_ready()
        client = RerankerClient(channel, upstream)
        for _ in range(2):
            with pytest.raises(MeshError) as caught:
                await _ranked(client, timeout_s=1)
            assert caught.value.reason == "BUDGET_EXCEEDED"
        with pytest.raises(MeshError) as caught:
            await _ranked(client)
        assert (caught.value.reason, calls) == ("CIRCUIT_OPEN", 2)
        (point,) = [
            point
            for point in telemetry.metrics()["evenmesh.upstream.circuit"].data.data_points
            if point.attributes == {"upstream": "reranker"}
        ]
        assert point.value == Circuit.OPEN.value
        await server.stop(0)
        server, _ = await _server(port, **_rerank(scoring))
        scores: list[float] = []
        async with asyncio.timeout(30):
            while not scores:
                try:
                    scores = await _ranked(client)
                except Unavailable:
                    await asyncio.sleep(0.05)
        assert (scores, upstream.breaker.state) == ([0.5], Circuit.CLOSED)
    await server.stop(0)


async def test_a_slow_replica_is_hedged_and_cancelled() -> None:
    served: list[str] = []
    cancelled = asyncio.Event()

    async def slow(request: Any, context: Any) -> reranker_pb.RerankResponse:
        served.append("slow")
        if "quick" not in served:  # not connected yet: a second call would meet this one again
            return reranker_pb.RerankResponse(scores=[0.5])
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError

    async def quick(request: Any, context: Any) -> reranker_pb.RerankResponse:
        served.append("quick")
        return reranker_pb.RerankResponse(scores=[0.5])

    (first, one), (second, two) = await _server(**_rerank(slow)), await _server(**_rerank(quick))
    reported: list[bool] = []
    hedging = Hedging(0.05, share=1.0, on_hedge=reported.append)
    target = f"ipv4:127.0.0.1:{one},127.0.0.1:{two}"
    options = {"max_message_bytes": 2**20, "telemetry": Telemetry.disabled()}
    async with RerankerClient.channel_to(target, **options) as channel, asyncio.timeout(30):
        client = RerankerClient(channel, Upstream(Breaker("reranker"), hedging))
        while True not in reported:  # round robin: once both connections stand, the slow one is asked first
            assert await _ranked(client) == [0.5]
        await cancelled.wait()
    assert set(served) == {"slow", "quick"}
    await asyncio.gather(first.stop(0), second.stop(0))


async def test_the_caller_is_charged_for_answers() -> None:
    answer = generator_pb.Answer(text="x", prompt_tokens=30, completion_tokens=12)

    async def stream(request: Any, context: Any) -> AsyncIterator[generator_pb.GenerateResponse]:
        yield generator_pb.GenerateResponse(delta="x")
        yield generator_pb.GenerateResponse(answer=answer)

    async def batch(request: Any, context: Any) -> generator_pb.GenerateBatchResponse:
        return generator_pb.GenerateBatchResponse(
            results=[generator_pb.GenerateBatchResult(answer=answer) for _ in request.requests]
        )

    name = "evenmesh_generator_v1_GeneratorService"
    server, port = await _server(
        **{
            f"{name}_Generate": grpc.unary_stream_rpc_method_handler(
                stream,
                request_deserializer=generator_pb.GenerateRequest.FromString,
                response_serializer=generator_pb.GenerateResponse.SerializeToString,
            ),
            f"{name}_GenerateBatch": grpc.unary_unary_rpc_method_handler(
                batch,
                request_deserializer=generator_pb.GenerateBatchRequest.FromString,
                response_serializer=generator_pb.GenerateBatchResponse.SerializeToString,
            ),
        }
    )
    meter = Meter("acme", TenantLimits(tokens_per_minute=3 * 42))
    metering.enter(meter)
    prompt = generator_pb.GenerateRequest(question="q")
    options = {"max_message_bytes": 2**20, "telemetry": Telemetry.disabled()}
    async with GeneratorClient.channel_to(f"127.0.0.1:{port}", **options) as channel:
        client = GeneratorClient(channel)
        _ = [part async for part in client.stream(prompt, timeout_s=30)]
        await meter.begin(spends_tokens=True)  # 84 of 126 are left
        await client.batch([prompt, prompt], timeout_s=30)
    with pytest.raises(MeshError) as caught:  # 3 * (30 + 12) are gone
        await meter.begin(spends_tokens=True)
    assert caught.value.reason == "OUT_OF_TOKENS"
    await server.stop(0)


async def _reranked(channel: grpc.aio.Channel, upstream: Upstream) -> None:
    await RerankerClient(channel, upstream).rerank(ask(), [passage("a")], timeout_s=60)


async def _streamed(channel: grpc.aio.Channel, upstream: Upstream) -> None:
    prompt = generator_pb.GenerateRequest(question="q")
    async with aclosing(GeneratorClient(channel, upstream).stream(prompt, timeout_s=60)) as parts:
        assert [part async for part in parts] == ["x"]


async def _voted(channel: grpc.aio.Channel, upstream: Upstream) -> None:
    session = EvaluatorClient(channel, upstream).open_vote(evaluator_pb.VoteRequest(), timeout_s=60)
    try:
        await session.add(0, "x")
    finally:
        session.close()


@pytest.mark.parametrize("call", [_reranked, _streamed, _voted])
async def test_a_tenant_leaves_others_calls_of_a_connection(
    call: Callable[[grpc.aio.Channel, Upstream], Awaitable[None]],
) -> None:
    """Beyond the calls of a connection gRPC lets all wait, first come, first served."""
    running: Counter[str] = Counter()
    changed, go = asyncio.Condition(), asyncio.Event()

    async def hold(context: Any) -> None:
        tenant = dict(context.invocation_metadata())[TENANT_KEY]
        async with changed:
            running[tenant] += 1
            changed.notify_all()
        if tenant == "greedy":
            await go.wait()

    async def rerank(request: Any, context: Any) -> reranker_pb.RerankResponse:
        await hold(context)
        return reranker_pb.RerankResponse(scores=[0.5])

    async def generate(request: Any, context: Any) -> AsyncIterator[generator_pb.GenerateResponse]:
        await hold(context)
        yield generator_pb.GenerateResponse(delta="x")

    async def vote(requests: Any, context: Any) -> AsyncIterator[evaluator_pb.VoteAnytimeResponse]:
        await hold(context)
        yield evaluator_pb.VoteAnytimeResponse()

    handlers: dict[str, Any] = {
        "evenmesh_generator_v1_GeneratorService_Generate": grpc.unary_stream_rpc_method_handler(
            generate, response_serializer=generator_pb.GenerateResponse.SerializeToString
        ),
        "evenmesh_evaluator_v1_EvaluatorService_VoteAnytime": grpc.stream_stream_rpc_method_handler(
            vote, response_serializer=evaluator_pb.VoteAnytimeResponse.SerializeToString
        ),
    }
    server, port = await _server(streams=4, **_rerank(rerank), **handlers)
    settings = OrchestratorSettings(upstream_calls=4)
    upstream = Upstreams(settings, Telemetry.disabled().meter).generator

    async def made(tenant: str) -> None:
        callers.enter(Caller(tenant, tenant, frozenset({Role.ASK})))
        await call(channel, upstream)

    async with _channel(port, Telemetry.disabled()) as channel, asyncio.timeout(60):
        await channel.channel_ready()
        greedy = [asyncio.create_task(made("greedy")) for _ in range(20)]
        async with changed:
            await changed.wait_for(lambda: running["greedy"] >= 3)
        for _ in range(3):
            await made("modest")
        assert running == {"greedy": 3, "modest": 3}
        assert upstream.calls.waiting == 17
        greedy.pop().cancel()  # one that waits costs nobody a turn
        go.set()
        await asyncio.gather(*greedy)
    assert running["greedy"] == 19
    assert (upstream.calls.in_flight, upstream.calls.waiting) == (0, 0)
    await server.stop(0)


async def test_no_call_waits_for_its_turn_beyond_its_time() -> None:
    upstream = Upstream(Breaker("generator"), calls=Admission(1, "calls"))
    async with _channel(9, Telemetry.disabled()) as channel, upstream.turn():
        prompt = generator_pb.GenerateRequest(question="q")
        deadline.enter(deadline.Deadline.after(0.05))
        with pytest.raises(Overloaded):
            _ = [part async for part in GeneratorClient(channel, upstream).stream(prompt, timeout_s=60)]
    assert upstream.calls.in_flight == 0


async def _never() -> None:
    pytest.fail("was called")


async def test_a_wait_for_a_turn_says_nothing_of_the_service() -> None:
    breaker = Breaker("generator", failures=1, slow_s=0.0)
    upstream = Upstream(breaker, calls=Admission(1, "calls"))
    async with upstream.turn():
        waiting = asyncio.create_task(upstream.call(_never, timeout_s=0.001))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert breaker.state is Circuit.CLOSED


async def test_an_open_circuit_refuses_what_would_wait_for_its_turn() -> None:
    breaker = Breaker("generator", failures=1)
    upstream = Upstream(breaker, calls=Admission(1, "calls"))
    with pytest.raises(Unanswered), breaker.watch(1.0):
        raise Unanswered("UPSTREAM_UNAVAILABLE", "away")
    async with upstream.turn():
        with pytest.raises(Unavailable) as refused:
            await upstream.call(_never, timeout_s=60)
    assert refused.value.reason == "CIRCUIT_OPEN"
