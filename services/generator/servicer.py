"""RPCs of the generator: decode, admit, hand over, encode."""
# ruff: noqa: N802 - names and arguments are the contract's

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import grpc

from meshkit import deadline, metering
from meshkit.admission import Admission
from meshkit.compute import ComputePool
from meshkit.errors import MeshError
from meshkit.spans import Spans
from meshkit.telemetry import Telemetry
from ragmesh.generator.v1 import generator_service_pb2 as pb
from ragmesh.generator.v1 import generator_service_pb2_grpc as rpc
from services.generator import codec
from services.generator.domain import GenerationRequest, Passage, RelevanceRequest
from services.generator.engine import Finished, Generator
from services.generator.metrics import SCORE_RELEVANCE, TEXT_COMPLETION, GeneratorMetrics
from services.generator.ports import Cancellation
from services.generator.tracing import ModelSpans

NAME: Final = "ragmesh.generator.v1.GeneratorService"
"""Full name of the service."""

Context = grpc.aio.ServicerContext[Any, Any]

_BYTES_PER_TOKEN: Final = 4
"""How many bytes of text one token is, for admission: exact counts would cost a tokenizer pass."""


class GeneratorServicer(rpc.GeneratorServiceServicer):
    """The generator on the wire. Its engine is there once the service has started.

    Args:
        admission: counts tokens to read and to write, beams counted.
        codec_pool: where large requests are checked and converted.
        metrics: told what answers cost; None records nothing.
        spans: makes spans of what models do; None makes none.
    """

    def __init__(
        self,
        admission: Admission,
        codec_pool: ComputePool,
        metrics: GeneratorMetrics | None = None,
        spans: Spans | None = None,
    ) -> None:
        self._admission = admission
        self._codec_pool = codec_pool
        self._metrics = metrics or GeneratorMetrics(Telemetry.disabled())
        self._spans = ModelSpans(spans or Spans(Telemetry.disabled()))
        self._engine: Generator | None = None

    def open(self, engine: Generator) -> None:
        """Begins to answer, with ``engine``."""
        self._engine = engine

    @property
    def engine(self) -> Generator:
        """The engine; the server lets no call in before there is one."""
        if self._engine is None:
            raise RuntimeError("the generator was called before it was opened")
        return self._engine

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Writes one answer: text deltas, then the final answer."""
        decoded = codec.decode_request(request, default_beams=1)
        cancel = Cancellation(deadline.current())
        model = self.engine.name_of(decoded.model)
        failures = self._metrics.failures(TEXT_COMPLETION, model)
        with self._spans.answering([decoded], model, stream=True) as span, failures:
            async with (
                self._admission.admit(_work(decoded)),
                aclosing(self.engine.stream(decoded, cancel)) as parts,
            ):
                async for part in parts:
                    if isinstance(part, str):
                        yield pb.GenerateResponse(delta=part)
                    else:
                        self._metrics.answered(part)
                        self._spans.answered(span, [part])
                        _paid(part)
                        yield pb.GenerateResponse(answer=codec.encode_answer(part))

    async def GenerateBatch(
        self, request: pb.GenerateBatchRequest, context: Context
    ) -> pb.GenerateBatchResponse:
        """Writes several answers; one answer or one error per item."""
        items = await self._codec_pool.run(codec.decode_batch, request)
        good = [item for item in items if not isinstance(item, MeshError)]
        cancel = Cancellation(deadline.current())
        began = time.perf_counter()
        model = self.engine.name_of(good[0].model) if good else ""
        # Fails as a whole for want of room or time, whatever models its requests name.
        failures = self._metrics.failures(TEXT_COMPLETION, "")
        with self._spans.answering(good, model, stream=False) as span, failures:
            async with self._admission.admit(sum(map(_work, good))):
                answers = await self.engine.batch(good, cancel)
            self._spans.answered(span, [one for one in answers if isinstance(one, Finished)])
        self._record(good, answers, time.perf_counter() - began)
        rest = iter(answers)
        outcomes: list[Finished | MeshError] = [
            item if isinstance(item, MeshError) else next(rest) for item in items
        ]
        return codec.encode_results(outcomes)

    async def ScoreRelevance(
        self, request: pb.ScoreRelevanceRequest, context: Context
    ) -> pb.ScoreRelevanceResponse:
        """P(True) of each passage, or of as many as are needed to know the best."""
        judgement, model, best = await self._codec_pool.run(codec.decode_judgement, request)
        cancel = Cancellation(deadline.current())
        name = self.engine.name_of(model)
        failures = self._metrics.failures(SCORE_RELEVANCE, name)
        began = time.perf_counter()
        with self._spans.judging(judgement, name) as span, failures:
            async with self._admission.admit(_reading(judgement)):
                judged = await self.engine.relevance(judgement, model, cancel, best)
            self._spans.judged(span, judged)
        metering.current().spend(_reading(judgement))
        self._metrics.judged(judged, time.perf_counter() - began)
        return codec.encode_judgement(judged)

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        """Lists the models."""
        return codec.encode_models(self.engine.models(), self.engine.away())

    def _record(
        self,
        requests: list[GenerationRequest],
        outcomes: list[Finished | MeshError],
        duration_s: float,
    ) -> None:
        for request, outcome in zip(requests, outcomes, strict=True):
            if isinstance(outcome, Finished):
                self._metrics.answered(outcome)
                _paid(outcome)
            else:
                name = self.engine.name_of(request.model)
                self._metrics.failed(TEXT_COMPLETION, name, outcome, duration_s)


def _paid(outcome: Finished) -> None:
    """Notes for whoever called what an answer cost, reused or not."""
    metering.current().spend(outcome.answer.prompt_tokens + outcome.answer.completion_tokens)


def _work(request: GenerationRequest) -> int:
    """Tokens to read and to write."""
    decoding = request.decoding
    return decoding.max_new_tokens * decoding.num_beams + _reading(request)


def _reading(request: GenerationRequest | RelevanceRequest) -> int:
    """Tokens to read when the question, and what was said before it, goes with each passage, about."""
    once = len(request.question) + sum(len(one.question) + len(one.answer) for one in request.turns)
    passages = request.passages or (Passage("", "", ""),)
    characters = sum(once + len(one.title) + len(one.text) for one in passages)
    return 1 + characters // _BYTES_PER_TOKEN
