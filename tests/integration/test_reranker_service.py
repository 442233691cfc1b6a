"""The reranker over the wire: scores and orders, bad input, its generator away or slow, and as a process."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from evenmesh.common.v1 import common_pb2
from evenmesh.generator.v1.generator_service_pb2_grpc import add_GeneratorServiceServicer_to_server
from evenmesh.reranker.v1 import feedback_service_pb2 as feedback_pb
from evenmesh.reranker.v1 import reranker_service_pb2 as pb
from evenmesh.reranker.v1.feedback_service_pb2_grpc import FeedbackServiceStub
from evenmesh.reranker.v1.reranker_service_pb2_grpc import RerankerServiceStub
from evenmesh.wire.channel import connect, connect_sync
from evenmesh.wire.deadline import current
from evenmesh.wire.errors import MeshError, from_rpc_error
from evenmesh_generator.domain import (
    Answer,
    Augmentation,
    GenerationRequest,
    ModelDescription,
    RelevanceRequest,
)
from evenmesh_generator.engine import Generator
from evenmesh_generator.ports import Cancellation
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.servicer import NAME, GeneratorServicer
from evenmesh_generator.settings import GeneratorSettings
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.rpc.server import MeshServer, Registration
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_reranker.__main__ import RerankerService
from evenmesh_reranker.feedback.servicer import NAME as FEEDBACK
from evenmesh_reranker.servicer import RERANKER
from evenmesh_reranker.settings import RerankerSettings
from tests.support import tiny_models
from tests.support.lifecycle import Idle
from tests.support.started import Start, end_in_one_line, serving, starting
from tests.support.tiny_models import SENTENCES

PASSAGES = [common_pb2.Passage(id=f"p{at}", text=text) for at, text in enumerate(SENTENCES[:4])]
TIMEOUT = 60


class Judge:
    """A language model that judges by a passage's place, as slowly as it is asked to."""

    def __init__(self) -> None:
        self.proceed = asyncio.Event()
        self.proceed.set()
        self.began = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.seconds_left: list[float] = []
        self.templates: list[str] = []
        self.error: MeshError | None = None
        self.judges = True

    def describe(self) -> ModelDescription:
        kinds = (Augmentation.IN_PROMPT,)
        return ModelDescription(
            "judge", "v9", "stand-in", "Judge", "cpu", "float32", self.judges, 512, 64, kinds
        )

    @property
    def up(self) -> bool:
        return True

    async def generate_stream(
        self, request: GenerationRequest, cancel: Cancellation
    ) -> AsyncGenerator[str | Answer, None]:
        raise AssertionError("nobody asks for answers here")
        yield ""

    async def generate(self, request: GenerationRequest, cancel: Cancellation) -> Answer:
        raise AssertionError("nobody asks for answers here")

    async def score_relevance(self, request: RelevanceRequest, cancel: Cancellation) -> list[float]:
        self.templates.append(request.template)
        self.seconds_left.append(current().remaining())
        self.began.set()
        if self.error is not None:
            raise self.error
        try:
            await self.proceed.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        count = len(request.passages)
        return [(1 + at) / (1 + count) for at in range(count)]


Generators = tuple[MeshServer, Judge]


@pytest.fixture
async def generator(tmp_path: Path) -> AsyncIterator[Generators]:
    """A real generator server with a stand-in for the model."""
    judge = Judge()
    pool = ComputePool(1, "codec")
    servicer = GeneratorServicer(Admission(10**6, "tokens"), pool)
    servicer.open(Generator([judge], TemplateLibrary.bundled()))
    settings = GeneratorSettings(port=0, home=tmp_path, grace_s=0)
    registration = Registration(add_GeneratorServiceServicer_to_server, servicer, NAME)
    async with MeshServer("g", settings, Idle(registration), telemetry=Telemetry.disabled()) as server:
        yield server, judge
    pool.close()


Serve = Callable[..., Any]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Serves a reranker with settings, without a cross-encoder unless they name one; gives a channel to it."""
    async with AsyncExitStack() as stack:

        async def start(**fields: Any) -> grpc.aio.Channel:
            given = {"port": 0, "home": tmp_path, "grace_s": 0, "default_reranker": "rankrag"} | fields
            settings = RerankerSettings(**({"cross_encoder": ""} | given))
            service = RerankerService(settings, Telemetry.disabled())
            server = await stack.enter_async_context(
                MeshServer("reranker", settings, service, telemetry=Telemetry.disabled())
            )
            channel = connect(server.address, service=RERANKER)
            stack.push_async_callback(channel.close)
            return channel

        yield start


async def _rerank(channel: grpc.aio.Channel, timeout: float = TIMEOUT, **fields: Any) -> pb.RerankResponse:
    request = pb.RerankRequest(**{"query": SENTENCES[0], "passages": PASSAGES, **fields})
    return await RerankerServiceStub(channel).Rerank(request, timeout=timeout)


async def test_the_bundled_cross_encoder_is_the_default_and_is_fused(serve: Serve) -> None:
    defaults = {
        name: RerankerSettings.model_fields[name].default for name in ("default_reranker", "cross_encoder")
    }
    assert defaults == {"default_reranker": "cross-encoder", "cross_encoder": "bundled"}
    channel = await serve(**defaults, dtype="float32", device="cpu")
    alone = await _rerank(channel)
    assert (alone.reranker, alone.fusion) == ("cross-encoder", 0.0)
    first = pb.FirstStage(scores=[1.0, 2.0, 3.0, 4.0])
    fused = await _rerank(channel, first_stage=first)
    assert fused.fusion > 0
    assert all(0 <= score <= 1 for score in fused.scores)
    assert list((await _rerank(channel, first_stage=first, fusion=0.0)).scores) == pytest.approx(alone.scores)
    heavy = await _rerank(channel, first_stage=first, fusion=10.0)
    assert (list(heavy.order), heavy.fusion) == ([3, 2, 1, 0], 10.0)


async def test_rankrag_asks_the_generator(generator: Generators, serve: Serve) -> None:
    server, _ = generator
    response = await _rerank(await serve(generator_target=server.address), top_k=2)
    assert list(response.scores) == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert list(response.order) == [3, 2]
    assert (response.reranker, response.model_version) == ("rankrag", "judge@v9")


async def test_rankrag_stops_when_the_best_are_as_good_as_is_asked_for(
    generator: Generators, serve: Serve
) -> None:
    channel = await serve(generator_target=generator[0].address)
    passages = [common_pb2.Passage(id=f"p{at:02}", text="text") for at in range(40)]
    # Of the 16 that are judged first the last has 16 / 17.
    response = await _rerank(channel, passages=passages, top_k=1, tolerance=0.1)
    assert (list(response.order), list(response.unscored)) == ([15], list(range(16, 40)))
    assert response.scores[15] == pytest.approx(16 / 17)
    assert response.unscored_at_most == 1.0
    for fields in ({"top_k": 1, "tolerance": 0.0}, {"top_k": 1}):
        response = await _rerank(channel, passages=passages, **fields)
        assert (len(response.scores), list(response.unscored)) == (40, [])
        assert not any(map(math.isnan, response.scores))


async def test_feedback_is_for_what_was_scored(generator: Generators, serve: Serve) -> None:
    channel = await serve(generator_target=generator[0].address, feedback_served_only=True)
    passages = [common_pb2.Passage(id=f"p{at:02}", text="text") for at in range(40)]
    agent = common_pb2.Agent(task_id="qa", model_id="m")
    await _rerank(channel, query="q", passages=passages, top_k=1, tolerance=0.1, agent=agent)
    items = [
        feedback_pb.Feedback(
            id=one,
            query="q",
            passage_id=one,
            agent=agent,
            usefulness=1,
            ranking=[one],
            model_version="judge@v9",
        )
        for one in ("p15", "p16")
    ]
    results = (
        await FeedbackServiceStub(channel).RecordFeedback(
            feedback_pb.RecordFeedbackRequest(feedback=items), timeout=TIMEOUT
        )
    ).results
    assert [one.error.reason for one in results] == ["", "NOT_SERVED"]


async def test_a_generator_that_cannot_judge_is_said_with_its_setting(
    generator: Generators, serve: Serve
) -> None:
    server, judge = generator
    judge.judges = False
    with pytest.raises(
        grpc.aio.AioRpcError, match="judge cannot judge relevance; EVENMESH_RERANKER_RANKRAG_MODEL"
    ):
        await _rerank(await serve(generator_target=server.address))


async def test_none_keeps_the_order_and_needs_no_generator(serve: Serve) -> None:
    channel = await serve(generator_target="127.0.0.1:1")
    response = await _rerank(channel, reranker="none")
    assert list(response.scores) == [1.0, 1 / 2, 1 / 3, 1 / 4]
    assert list(response.order) == [0, 1, 2, 3]


async def test_without_a_cross_encoder_the_setting_is_named(serve: Serve) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="EVENMESH_RERANKER_CROSS_ENCODER") as caught:
        await _rerank(await serve(), reranker="cross-encoder")
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert from_rpc_error(caught.value).reason == "NOT_CONFIGURED"


async def test_a_cross_encoder(serve: Serve, tmp_path: Path) -> None:
    folder = tiny_models.cross_encoder(tmp_path / "cross")
    channel = await serve(
        cross_encoder=str(folder), default_reranker="cross-encoder", cpu_engine="torch", dtype="float32"
    )
    response = await _rerank(channel, agent=common_pb2.Agent(task_id="qa", model_id="m"))
    expected = sorted(range(4), key=lambda at: (-response.scores[at], PASSAGES[at].id))
    assert list(response.order) == expected
    assert response.reranker == "cross-encoder"
    (model,) = (
        await FeedbackServiceStub(channel).ListModels(feedback_pb.ListModelsRequest(), timeout=TIMEOUT)
    ).models
    assert (model.version, model.serving) == (response.model_version, True)
    assert "cross" in model.provenance


async def test_bad_requests_name_their_field(serve: Serve) -> None:
    channel = await serve()
    table: list[tuple[dict[str, Any], str]] = [
        ({"query": ""}, "query"),
        ({"query": " "}, "query"),
        ({"query": "x" * 2**20}, "query"),
        ({"passages": []}, "passages"),
        ({"passages": PASSAGES + PASSAGES[1:2]}, "passages[4].id"),
        ({"passages": [common_pb2.Passage(id="a", text="x" * 65_537)]}, "passages[0].text"),
        ({"passages": [common_pb2.Passage(id=str(at), text="x") for at in range(1001)]}, "passages"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 5}, "top_k"),
        ({"tolerance": 2.0}, "tolerance"),
        ({"agent": common_pb2.Agent(task_id="x" * 129)}, "agent.task_id"),
        ({"agent": common_pb2.Agent(model_id="x" * 129)}, "agent.model_id"),
    ]
    for fields, field in table:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _rerank(channel, **fields)
        assert (caught.value.code(), from_rpc_error(caught.value).field) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            field,
        )
    with pytest.raises(grpc.aio.AioRpcError, match="no reranker 'magic'") as caught:
        await _rerank(channel, reranker="magic")
    assert (caught.value.code(), from_rpc_error(caught.value).field) == (
        grpc.StatusCode.NOT_FOUND,
        "reranker",
    )


async def test_a_generator_that_is_away(serve: Serve) -> None:
    with pytest.raises(
        grpc.aio.AioRpcError, match="the generator, which judges for rankrag, is away"
    ) as caught:
        await _rerank(await serve(generator_target="127.0.0.1:1"))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert from_rpc_error(caught.value).reason == "GENERATOR_UNAVAILABLE"


async def test_the_deadline_travels(generator: Generators, serve: Serve) -> None:
    server, judge = generator
    await _rerank(await serve(generator_target=server.address), timeout=300)
    assert 0 < judge.seconds_left[0] < 302  # gRPC rounds so many up to seconds, in each of two calls


async def test_a_caller_that_leaves_cancels_the_generators_call(generator: Generators, serve: Serve) -> None:
    server, judge = generator
    judge.proceed.clear()
    call = asyncio.ensure_future(_rerank(await serve(generator_target=server.address)))
    await asyncio.wait_for(judge.began.wait(), TIMEOUT)
    call.cancel()
    await asyncio.wait_for(judge.cancelled.wait(), TIMEOUT)


async def test_a_slow_generator_ends_in_the_callers_deadline(generator: Generators, serve: Serve) -> None:
    server, judge = generator
    judge.proceed.clear()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _rerank(await serve(generator_target=server.address), timeout=1)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_model_of_the_settings_that_is_not_there(generator: Generators, serve: Serve) -> None:
    server, _ = generator
    channel = await serve(generator_target=server.address, rankrag_model="nope")
    with pytest.raises(grpc.aio.AioRpcError, match="EVENMESH_RERANKER_RANKRAG_MODEL") as caught:
        await _rerank(channel)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_template_of_the_settings_is_the_prompt_that_judges(
    generator: Generators, serve: Serve
) -> None:
    server, judge = generator
    await _rerank(await serve(generator_target=server.address))
    claims = "rankrag-context-ranking-claim"
    await _rerank(await serve(generator_target=server.address, rankrag_template=claims))
    assert judge.templates == ["", claims]


@pytest.mark.parametrize("template", ["nope", "ra-x"])
async def test_a_template_of_the_settings_that_judges_nothing(
    generator: Generators, serve: Serve, template: str
) -> None:
    server, _ = generator
    channel = await serve(generator_target=server.address, rankrag_template=template)
    with pytest.raises(grpc.aio.AioRpcError, match="EVENMESH_RERANKER_RANKRAG_TEMPLATE") as caught:
        await _rerank(channel)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_the_generators_objection_to_the_question_is_one_to_the_query(
    generator: Generators, serve: Serve
) -> None:
    from evenmesh.wire.errors import InvalidField

    server, judge = generator
    judge.error = InvalidField("question", "has 65 tokens; judge reads at most 64")
    with pytest.raises(grpc.aio.AioRpcError, match="has 65 tokens") as caught:
        await _rerank(await serve(generator_target=server.address))
    assert (caught.value.code(), from_rpc_error(caught.value).field) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "query",
    )


async def test_too_much_work_is_refused_at_once(generator: Generators, serve: Serve) -> None:
    server, judge = generator
    judge.proceed.clear()
    channel = await serve(generator_target=server.address, max_work=6)
    first = asyncio.ensure_future(_rerank(channel))
    await asyncio.wait_for(judge.began.wait(), TIMEOUT)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _rerank(channel)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    judge.proceed.set()
    await first


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Start]:
    with starting("reranker", tmp_path) as start:
        yield start


@pytest.mark.timeout(600)
async def test_as_a_process(process: Start, tmp_path: Path) -> None:
    running = process()
    address = await serving(running, "reranker", tmp_path, RERANKER, FEEDBACK)
    channel = connect_sync(address, service=RERANKER)
    request = pb.RerankRequest(query="q", passages=PASSAGES, reranker="none")
    assert list(RerankerServiceStub(channel).Rerank(request, timeout=TIMEOUT).order) == [0, 1, 2, 3]
    channel.close()
    running.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(running.wait, 60) == 0


@pytest.mark.timeout(900)
async def test_what_cannot_be_served_ends_in_one_line(process: Start, tmp_path: Path) -> None:
    starts = {
        "EVENMESH_RERANKER_DEFAULT_RERANKER=cross-encoder needs EVENMESH_RERANKER_CROSS_ENCODER": {
            "CROSS_ENCODER": ""
        },
        "EVENMESH_RERANKER_CROSS_ENCODER: there is no folder": {"CROSS_ENCODER": str(tmp_path / "none")},
        "EVENMESH_RERANKER_ALLOW_DOWNLOAD=true fetches it": {"CROSS_ENCODER": "nobody/nothing"},
    }
    await end_in_one_line(process, starts)
