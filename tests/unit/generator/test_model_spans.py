"""Spans of what models do: OpenTelemetry's names, and text only where settings say so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from evenmesh.common.v1 import common_pb2
from evenmesh.generator.v1 import generator_service_pb2 as pb
from evenmesh_generator.engine import Generator
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.servicer import GeneratorServicer
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.telemetry import gen_ai
from evenmesh_kit.telemetry.spans import Spans
from tests.support.in_memory_telemetry import InMemoryTelemetry
from tests.unit.generator.test_metrics import ANSWER, Steady


@pytest.fixture(params=[False, True])
def telemetry(request: pytest.FixtureRequest) -> Iterator[InMemoryTelemetry]:
    """Telemetry without and with text."""
    telemetry = InMemoryTelemetry("generator", text=request.param)
    yield telemetry
    telemetry.shutdown()


@pytest.fixture
def servicer(telemetry: InMemoryTelemetry) -> Iterator[GeneratorServicer]:
    """A servicer around a model that answers at once."""
    pool = ComputePool(1, "codec")
    servicer = GeneratorServicer(Admission(10_000, "tokens"), pool, None, Spans(telemetry))
    servicer.open(Generator([Steady()], TemplateLibrary.bundled()))
    yield servicer
    pool.close()


async def test_an_answer_is_a_span_with_what_it_cost(
    telemetry: InMemoryTelemetry, servicer: GeneratorServicer
) -> None:
    passages = [common_pb2.Passage(id="p", title="", text="a passage of theirs")]
    request = pb.GenerateRequest(question="a question of theirs", passages=passages)
    with telemetry.tracer.start_as_current_span("Generate"):
        async for _ in servicer.Generate(request, cast(Any, None)):
            pass
    span = telemetry.spans()[0]
    assert span.name == "text_completion m"
    attributes = dict(span.attributes or {})
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "evenmesh",
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": True,
        "gen_ai.response.model": "m@v2",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": ANSWER.cost.first_token_s,
        "gen_ai.usage.input_tokens": ANSWER.prompt_tokens,
        "gen_ai.usage.output_tokens": ANSWER.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": ANSWER.cost.reused_tokens,
        "evenmesh.generator.queue_s": ANSWER.cost.queue_s,
        "evenmesh.generator.batch.rows": ANSWER.cost.batch_rows,
        "evenmesh.generate.passages": 1,
    }
    assert {name: attributes.get(name) for name in expected} == expected
    for words in ("a question of theirs", "a passage of theirs"):
        assert (words in span.to_json()) is telemetry.text
    assert (ANSWER.text in attributes.get(gen_ai.OUTPUT, "")) is telemetry.text


async def test_answers_of_a_batch_are_one_span(
    telemetry: InMemoryTelemetry, servicer: GeneratorServicer
) -> None:
    requests = [pb.GenerateRequest(question=question) for question in ("a", "b", "wrong")]
    with telemetry.tracer.start_as_current_span("GenerateBatch"):
        await servicer.GenerateBatch(pb.GenerateBatchRequest(requests=requests), cast(Any, None))
    attributes = dict(telemetry.spans()[0].attributes or {})
    assert attributes["evenmesh.generate.contexts"] == 3
    assert attributes["gen_ai.usage.output_tokens"] == 2 * ANSWER.completion_tokens
    assert attributes["gen_ai.response.finish_reasons"] == ("stop", "stop")


async def test_a_judgement_is_a_span(telemetry: InMemoryTelemetry, servicer: GeneratorServicer) -> None:
    passages = [common_pb2.Passage(id=str(at), title="", text="theirs") for at in range(3)]
    request = pb.ScoreRelevanceRequest(question="a question of theirs", passages=passages)
    with telemetry.tracer.start_as_current_span("ScoreRelevance"):
        await servicer.ScoreRelevance(request, cast(Any, None))
    span = telemetry.spans()[0]
    assert span.name == "score_relevance m"
    attributes = dict(span.attributes or {})
    assert attributes["evenmesh.judge.passages"] == 3
    assert attributes["gen_ai.response.model"] == "m@v1"
    assert ("a question of theirs" in span.to_json()) is telemetry.text
