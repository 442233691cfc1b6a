"""Serve the generator's RPCs: decode, admit, compute, encode."""
# ruff: noqa: N802 - names and arguments are the contract's

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import grpc

from evenmesh.generator.v1 import generator_service_pb2 as pb
from evenmesh.generator.v1 import generator_service_pb2_grpc as rpc
from evenmesh.wire import deadline
from evenmesh.wire.errors import MeshError
from evenmesh_generator import codec
from evenmesh_generator.domain import Augmentation, GenerationRequest, Passage, RelevanceRequest
from evenmesh_generator.engine import GeneratedAnswer, Generator
from evenmesh_generator.metrics import SCORE_RELEVANCE, GeneratorMetrics
from evenmesh_generator.ports import Cancellation
from evenmesh_generator.tracing import ModelSpans
from evenmesh_kit.admission import metering
from evenmesh_kit.admission.queue import Admission, Admitted
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_kit.security import caller as callers
from evenmesh_kit.telemetry import gen_ai
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_kit.telemetry.spans import Spans

NAME: Final = pb.DESCRIPTOR.services_by_name["GeneratorService"].full_name
"""Full name of the service."""

Context = grpc.aio.ServicerContext[Any, Any]

_BYTES_PER_TOKEN: Final = 4
"""How many bytes of text one token is, for admission: exact counts would cost a tokenizer pass."""

_PIECES: Final = 4
"""Pieces into which a judgement of the largest possible work is cut."""


class GeneratorServicer(rpc.GeneratorServiceServicer):
    """Serves the generator. Its engine exists once the service has started.

    Args:
        admission: counts tokens to read and to write, beams counted.
        codec_pool: where large requests are checked and converted.
        metrics: records what answers cost; None records nothing.
        spans: makes spans of what models do; None makes none.
    """

    def __init__(
        self,
        admission: Admission,
        codec_pool: TenantPool,
        metrics: GeneratorMetrics | None = None,
        spans: Spans | None = None,
    ) -> None:
        self._admission = admission
        self._codec_pool = codec_pool
        self._metrics = metrics or GeneratorMetrics(Telemetry.disabled())
        self._spans = ModelSpans(spans or Spans(Telemetry.disabled()))
        self._engine: Generator | None = None

    def open(self, engine: Generator) -> None:
        """Start to answer, with ``engine``."""
        self._engine = engine

    @property
    def engine(self) -> Generator:
        """Return the engine; the server admits no call before there is one."""
        if self._engine is None:
            raise RuntimeError("the generator was called before it was opened")
        return self._engine

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Write one answer: text deltas, then the final answer."""
        decoded = codec.decode_request(request, default_beams=1, tenant=_tenant())
        cancel = Cancellation(deadline.current())
        model = self.engine.name_of(decoded.model)
        failures = self._metrics.failures(gen_ai.TEXT_COMPLETION, model)
        with self._spans.answering([decoded], model, stream=True) as span, failures:
            async with (
                self._admission.admit(_work(self.engine.as_read(decoded))),
                aclosing(self.engine.stream(decoded, cancel)) as parts,
            ):
                async for part in parts:
                    if isinstance(part, str):
                        yield pb.GenerateResponse(delta=part)
                    else:
                        self._metrics.answered(part)
                        self._spans.answered(span, [part])
                        _meter(part)
                        yield pb.GenerateResponse(answer=codec.encode_answer(part))

    async def GenerateBatch(
        self, request: pb.GenerateBatchRequest, context: Context
    ) -> pb.GenerateBatchResponse:
        """Write several answers; one answer or one error per item."""
        items = await self._codec_pool.run(codec.decode_batch, request, _tenant())
        good = [item for item in items if not isinstance(item, MeshError)]
        cancel = Cancellation(deadline.current())
        began = time.perf_counter()
        model = self.engine.name_of(good[0].model) if good else ""
        # A batch fails as a whole for lack of room or time, whatever models its requests name.
        failures = self._metrics.failures(gen_ai.TEXT_COMPLETION, "")
        with self._spans.answering(good, model, stream=False) as span, failures:
            answers = await self.engine.batch(good, cancel, _Pieces(self._admission).admit)
            self._spans.answered(span, [one for one in answers if isinstance(one, GeneratedAnswer)])
        self._record(good, answers, time.perf_counter() - began)
        rest = iter(answers)
        outcomes: list[GeneratedAnswer | MeshError] = [
            item if isinstance(item, MeshError) else next(rest) for item in items
        ]
        return codec.encode_results(outcomes)

    async def ScoreRelevance(
        self, request: pb.ScoreRelevanceRequest, context: Context
    ) -> pb.ScoreRelevanceResponse:
        """Return P(True) of each passage, or of as many as are needed to know the best."""
        judgement, model, best = await self._codec_pool.run(codec.decode_judgement, request, _tenant())
        cancel = Cancellation(deadline.current())
        name = self.engine.name_of(model)
        failures = self._metrics.failures(SCORE_RELEVANCE, name)
        began = time.perf_counter()
        with self._spans.judging(judgement, name) as span, failures:
            judged = await self.engine.relevance(
                judgement,
                model,
                cancel,
                best,
                admit=_Pieces(self._admission).admit,
                piece=self._admission.largest * _BYTES_PER_TOKEN // _PIECES,
            )
            self._spans.judged(span, judged)
        metering.current().spend(_reading(judgement))
        self._metrics.judged(judged, time.perf_counter() - began)
        return codec.encode_judgement(judged)

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        """List the models."""
        return codec.encode_models(self.engine.models(), self.engine.unavailable())

    def _record(
        self,
        requests: list[GenerationRequest],
        outcomes: list[GeneratedAnswer | MeshError],
        duration_s: float,
    ) -> None:
        for request, outcome in zip(requests, outcomes, strict=True):
            if isinstance(outcome, GeneratedAnswer):
                self._metrics.answered(outcome)
                _meter(outcome)
            else:
                name = self.engine.name_of(request.model)
                self._metrics.failed(gen_ai.TEXT_COMPLETION, name, outcome, duration_s)


class _Pieces:
    """Admits the pieces of one call: the first as any call, the others however long they wait for a turn."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._begun = False

    def admit(self, piece: GenerationRequest | RelevanceRequest) -> Admitted:
        """Return the room of a piece, to be entered."""
        queue_s = math.inf if self._begun else None
        self._begun = True
        return self._admission.admit(_work(piece), queue_s=queue_s)


def _tenant() -> str:
    """Return the tenant that owns what models keep of the call; empty without authentication."""
    caller = callers.current()
    return "" if caller is callers.ANYONE else caller.tenant


def _meter(outcome: GeneratedAnswer) -> None:
    """Charge an answer's tokens, reused or not, to the caller."""
    metering.current().spend(outcome.answer.prompt_tokens + outcome.answer.completion_tokens)


def _work(request: GenerationRequest | RelevanceRequest) -> int:
    """Return the tokens to read and to write."""
    if isinstance(request, RelevanceRequest):
        return _reading(request)
    return request.decoding.max_new_tokens * request.decoding.num_beams + _reading(request)


def _reading(request: GenerationRequest | RelevanceRequest) -> int:
    """Return the tokens to read, about.

    The question counts with each passage, and so do turns where passages are read alone.
    """
    once = len(request.question)
    turns = sum(len(one.question) + len(one.answer) for one in request.turns)
    passages = request.passages or (Passage("", "", ""),)
    rows = len(passages)
    if isinstance(request, GenerationRequest):
        once = max(once, len(request.contextual_question))
        rows = rows if request.augmentation is Augmentation.FUSION_IN_DECODER else 1
    characters = rows * turns + sum(once + len(one.title) + len(one.text) for one in passages)
    return 1 + characters // _BYTES_PER_TOKEN
