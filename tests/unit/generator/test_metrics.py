"""What is recorded of answers, judgements and engines, read back from an in-memory exporter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any, cast

import pytest
from opentelemetry.sdk.metrics.export import HistogramDataPoint, NumberDataPoint

from evenmesh.common.v1 import common_pb2
from evenmesh.generator.v1 import generator_service_pb2 as pb
from evenmesh.wire.deadline import NEVER
from evenmesh.wire.errors import InvalidField, MeshError, Overloaded
from evenmesh_generator import metrics as subject
from evenmesh_generator.domain import (
    Answer,
    Augmentation,
    Cost,
    FinishReason,
    GenerationRequest,
    ModelDescription,
    RelevanceRequest,
)
from evenmesh_generator.engine import GeneratedAnswer, Generator
from evenmesh_generator.metrics import GeneratorMetrics
from evenmesh_generator.ports import Cancellation, Cancelled
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.runtime.statistics import EngineStatistics
from evenmesh_generator.servicer import GeneratorServicer
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.compute.tenant_places import TenantPlaces
from evenmesh_kit.telemetry import gen_ai
from evenmesh_kit.telemetry.setup import Telemetry
from tests.support.in_memory_telemetry import InMemoryTelemetry

NAMES = {
    "gen_ai.server.request.duration": "s",
    "gen_ai.server.time_to_first_token": "s",
    "gen_ai.server.time_per_output_token": "s",
    "gen_ai.client.token.usage": "{token}",
    "evenmesh.generator.queue.duration": "s",
    "evenmesh.generator.batch.rows": "{row}",
    "evenmesh.generator.tokens.computed": "{token}",
    "evenmesh.generator.tokens.reused": "{token}",
}
CAPACITY = 10_000
COST = Cost(queue_s=0.25, first_token_s=0.5, total_s=2.5, computed_tokens=30, reused_tokens=10, batch_rows=4)
ANSWER = Answer("text", FinishReason.STOP, 40, 5, -1.0, model_version="v2", cost=COST)
MODEL = ModelDescription(
    "m", "v1", "e", "A", "cpu", "float32", True, 512, 64, (Augmentation.IN_PROMPT, Augmentation.RETRIEVAL_FREE)
)  # fmt: skip
BASE = {"gen_ai.provider.name": "evenmesh", "gen_ai.request.model": "m"}
ANSWERED = {
    **BASE,
    "gen_ai.operation.name": "text_completion",
    "gen_ai.response.model": "m@v2",
    "evenmesh.generator.engine": "e",
}


class Steady:
    """A model that answers :data:`ANSWER`, except to questions that name an error."""

    def describe(self) -> ModelDescription:
        return MODEL

    @property
    def up(self) -> bool:
        return True

    async def generate_stream(
        self, request: GenerationRequest, cancel: Cancellation
    ) -> AsyncGenerator[str | Answer, None]:
        if request.question == "wrong":
            raise InvalidField("question", "is wrong")
        yield ANSWER.text
        yield ANSWER

    async def generate(self, request: GenerationRequest, cancel: Cancellation) -> Answer:
        if request.question == "wrong":
            raise InvalidField("question", "")
        return ANSWER

    async def score_relevance(self, request: RelevanceRequest, cancel: Cancellation) -> list[float]:
        return [0.5] * len(request.passages)


@pytest.fixture
def telemetry() -> Iterator[InMemoryTelemetry]:
    telemetry = InMemoryTelemetry("generator")
    yield telemetry
    telemetry.shutdown()


@pytest.fixture
def admission() -> Admission:
    return Admission(CAPACITY, "tokens")


@pytest.fixture
def servicer(telemetry: InMemoryTelemetry, admission: Admission) -> Iterator[GeneratorServicer]:
    pool = ComputePool(1, "codec")
    servicer = GeneratorServicer(admission, pool, GeneratorMetrics(telemetry))
    servicer.open(Generator([Steady()], TemplateLibrary.bundled()))
    yield servicer
    pool.close()


def points(telemetry: InMemoryTelemetry, name: str) -> dict[tuple[tuple[str, Any], ...], Any]:
    """The points of a metric by their attributes."""
    metric = telemetry.metrics()[name]
    return {tuple(sorted((one.attributes or {}).items())): one for one in metric.data.data_points}


def at(
    telemetry: InMemoryTelemetry, name: str, attributes: dict[str, str] | None = None
) -> HistogramDataPoint:
    """The one point of a histogram that has ``ANSWERED`` and ``attributes``."""
    wanted = ANSWERED | (attributes or {})
    return cast(HistogramDataPoint, points(telemetry, name)[tuple(sorted(wanted.items()))])


def test_names_are_those_of_the_conventions() -> None:
    conventions = pytest.importorskip("opentelemetry.semconv._incubating.metrics.gen_ai_metrics")
    attributes = pytest.importorskip("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")
    errors = pytest.importorskip("opentelemetry.semconv.attributes.error_attributes")
    assert {name for name in NAMES if name.startswith("gen_ai.")} == {
        conventions.GEN_AI_SERVER_REQUEST_DURATION,
        conventions.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN,
        conventions.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN,
        conventions.GEN_AI_CLIENT_TOKEN_USAGE,
    }
    assert set(ANSWERED) - {"evenmesh.generator.engine"} == {
        attributes.GEN_AI_OPERATION_NAME,
        attributes.GEN_AI_PROVIDER_NAME,
        attributes.GEN_AI_REQUEST_MODEL,
        attributes.GEN_AI_RESPONSE_MODEL,
    }
    assert {"input", "output"} <= {one.value for one in attributes.GenAiTokenTypeValues}
    assert errors.ERROR_TYPE == "error.type"


async def test_an_answer_is_recorded_by_what_its_model_says_it_cost(
    telemetry: InMemoryTelemetry, servicer: GeneratorServicer
) -> None:
    request = pb.GenerateRequest(question="q")
    parts = [part async for part in servicer.Generate(request, cast(Any, None))]
    assert parts[-1].answer.text == "text"
    assert {name: metric.unit for name, metric in telemetry.metrics().items() if name in NAMES} == NAMES
    assert at(telemetry, "gen_ai.server.request.duration").sum == 2.5
    assert at(telemetry, "gen_ai.server.time_to_first_token").sum == 0.5
    assert at(telemetry, "gen_ai.server.time_per_output_token").sum == (2.5 - 0.5) / (5 - 1)
    assert at(telemetry, "gen_ai.client.token.usage", {"gen_ai.token.type": "input"}).sum == 40
    assert at(telemetry, "gen_ai.client.token.usage", {"gen_ai.token.type": "output"}).sum == 5
    assert at(telemetry, "evenmesh.generator.queue.duration").sum == 0.25
    assert at(telemetry, "evenmesh.generator.batch.rows").sum == 4
    (computed,) = points(telemetry, "evenmesh.generator.tokens.computed").values()
    (reused,) = points(telemetry, "evenmesh.generator.tokens.reused").values()
    assert (computed.value, reused.value) == (30, 10)


async def test_a_batch_records_what_was_computed_and_what_failed(
    telemetry: InMemoryTelemetry, servicer: GeneratorServicer
) -> None:
    questions = ["q", "q", "r", "wrong"]
    request = pb.GenerateBatchRequest(requests=[pb.GenerateRequest(question=one) for one in questions])
    response = await servicer.GenerateBatch(request, cast(Any, None))
    assert (response.cost.computed_answers, response.cost.reused_answers) == (2, 1)
    assert response.cost.written_tokens == 2 * 5
    assert at(telemetry, "gen_ai.server.request.duration").count == 2, "the repeated one asked no model"
    assert at(telemetry, "gen_ai.client.token.usage", {"gen_ai.token.type": "output"}).sum == 2 * 5
    failed = BASE | {"gen_ai.operation.name": "text_completion", "error.type": "INVALID_FIELD"}
    assert points(telemetry, "gen_ai.server.request.duration")[tuple(sorted(failed.items()))].count == 1


async def test_a_judgement_is_recorded(telemetry: InMemoryTelemetry, servicer: GeneratorServicer) -> None:
    passages = [common_pb2.Passage(id="a", text="x"), common_pb2.Passage(id="b", text="y")]
    request = pb.ScoreRelevanceRequest(question="q", passages=passages)
    response = await servicer.ScoreRelevance(request, cast(Any, None))
    assert list(response.probabilities) == [0.5, 0.5]
    judged = ANSWERED | {"gen_ai.operation.name": "score_relevance", "gen_ai.response.model": "m@v1"}
    (attributes,) = points(telemetry, "gen_ai.server.request.duration")
    assert dict(attributes) == judged


@pytest.mark.parametrize(
    ("question", "model", "kind", "attributes"),
    [
        ("wrong", "", "INVALID_FIELD", BASE),
        ("q", "secret", "NOT_FOUND", {"gen_ai.provider.name": "evenmesh"}),
    ],
)
async def test_a_failure_is_recorded_by_its_reason(
    telemetry: InMemoryTelemetry,
    servicer: GeneratorServicer,
    question: str,
    model: str,
    kind: str,
    attributes: dict[str, str],
) -> None:
    request = pb.GenerateRequest(question=question, model=model)
    with pytest.raises(MeshError) as caught:
        [part async for part in servicer.Generate(request, cast(Any, None))]
    assert caught.value.reason == kind
    (recorded,) = points(telemetry, "gen_ai.server.request.duration")
    wanted = {"gen_ai.operation.name": "text_completion", "error.type": kind}
    assert dict(recorded) == attributes | wanted


async def test_a_refusal_at_admission_is_a_failure_too(
    telemetry: InMemoryTelemetry, servicer: GeneratorServicer, admission: Admission
) -> None:
    request = pb.GenerateRequest(question="q")
    with admission.admit(CAPACITY):
        with pytest.raises(Overloaded):
            [part async for part in servicer.Generate(request, cast(Any, None))]
        with pytest.raises(Overloaded):
            await servicer.GenerateBatch(pb.GenerateBatchRequest(requests=[request]), cast(Any, None))
    stream, batch = (dict(one) for one in points(telemetry, "gen_ai.server.request.duration"))
    assert stream == BASE | {"gen_ai.operation.name": "text_completion", "error.type": "OVERLOADED"}
    assert batch == {key: value for key, value in stream.items() if key != "gen_ai.request.model"}


async def test_a_caller_that_leaves_is_a_failure_of_its_own(
    telemetry: InMemoryTelemetry, servicer: GeneratorServicer
) -> None:
    stream = cast(
        AsyncGenerator[pb.GenerateResponse, None],
        servicer.Generate(pb.GenerateRequest(question="q"), cast(Any, None)),
    )
    assert (await anext(stream)).delta == "text"
    await stream.aclose()
    (recorded,) = points(telemetry, "gen_ai.server.request.duration")
    assert dict(recorded)["error.type"] == "CANCELLED"


@pytest.mark.parametrize(
    ("error", "kind"),
    [(Cancelled(), "CANCELLED"), (asyncio.CancelledError(), "CANCELLED"), (KeyError("secret"), "KeyError")],
)
def test_errors_of_other_kinds(telemetry: InMemoryTelemetry, error: BaseException, kind: str) -> None:
    with (
        pytest.raises(type(error)),
        GeneratorMetrics(telemetry).failures(gen_ai.TEXT_COMPLETION, "m"),
    ):
        raise error
    (recorded,) = points(telemetry, "gen_ai.server.request.duration")
    assert dict(recorded)["error.type"] == kind


def test_an_answer_of_one_token_has_no_time_between_tokens(telemetry: InMemoryTelemetry) -> None:
    answer = Answer("x", FinishReason.STOP, 3, 1, -1.0, cost=COST)
    GeneratorMetrics(telemetry).answered(GeneratedAnswer(answer, MODEL, written_tokens=1))
    assert "gen_ai.server.time_to_first_token" in telemetry.metrics()
    assert "gen_ai.server.time_per_output_token" not in telemetry.metrics()


def test_engines_are_read_when_metrics_are_collected(telemetry: InMemoryTelemetry) -> None:
    metrics = GeneratorMetrics(telemetry)
    state = {"m": EngineStatistics(waiting=2, steps=5, cache_hits=3), "n": EngineStatistics(waiting=1)}
    for name in state:
        metrics.watch(name, lambda name=name: state[name])  # type: ignore[misc]
    assert _values(telemetry, "evenmesh.generator.requests.waiting") == {"m": 2, "n": 1}
    state["m"] = EngineStatistics(steps=9, cache_hits=4)
    assert _values(telemetry, "evenmesh.generator.requests.waiting") == {"m": 0, "n": 1}
    assert _values(telemetry, "evenmesh.generator.steps") == {"m": 9, "n": 0}
    assert _values(telemetry, "evenmesh.generator.cache.hits") == {"m": 4, "n": 0}


async def test_who_is_at_a_model_server_and_who_waits_for_it_is_read_of_all_servers(
    telemetry: InMemoryTelemetry,
) -> None:
    metrics, servers = GeneratorMetrics(telemetry), [TenantPlaces(1, share=1.0, where="it") for _ in range(2)]

    def read() -> list[float]:
        names = ("evenmesh.generator.places.held", "evenmesh.generator.places.waiting")
        found = (points(telemetry, name) for name in names)
        return [cast(NumberDataPoint, point).value for each in found for point in each.values()]

    assert not telemetry.metrics(), "no series without a server"
    for places in servers:
        metrics.watch_places(places)
    async with servers[0].hold(NEVER), servers[1].hold(NEVER):
        waiting = asyncio.create_task(servers[0].hold(NEVER).__aenter__())
        await asyncio.sleep(0)
        assert read() == [2, 1]
        waiting.cancel()
        await asyncio.wait([waiting])
    assert read() == [0, 0]


def test_every_count_of_an_engine_is_a_metric_but_those_that_answers_bring(
    telemetry: InMemoryTelemetry,
) -> None:
    GeneratorMetrics(telemetry).watch("m", EngineStatistics)
    watched = {one.field for one in (*subject._LEVELS, *subject._COUNTS)}
    brought = {"written_tokens", "computed_tokens", "reused_tokens", "most_steps_after_cancel"}
    assert watched | brought == set(EngineStatistics.__dataclass_fields__)
    assert len(telemetry.metrics()) == len(watched)


def test_nothing_is_read_or_recorded_when_disabled() -> None:
    telemetry = Telemetry.disabled()
    metrics = GeneratorMetrics(telemetry)

    def never() -> EngineStatistics:
        raise AssertionError("was read")

    metrics.watch("m", never)
    metrics.answered(cast(GeneratedAnswer, object()))  # would fail if anything were looked at
    with pytest.raises(InvalidField), metrics.failures(gen_ai.TEXT_COMPLETION, "m"):
        raise InvalidField("question", "is wrong")
    assert not telemetry.enabled


def _values(telemetry: InMemoryTelemetry, name: str) -> dict[str, float]:
    return {
        dict(attributes)["gen_ai.request.model"]: cast(NumberDataPoint, point).value
        for attributes, point in points(telemetry, name).items()
    }
