"""The largest requests of retriever, reranker and generator are refused by their cost, or cost less than a bound.

Requests are built from the descriptors, and costs are counted, not timed: tokens that a model would read, and
bytes that are held. Of each method requests of several sizes are tried: where the largest is refused, a smaller
one is the largest that is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any, Final, cast

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message

from evenmesh.generator.v1 import generator_service_pb2 as generator_pb
from evenmesh.reranker.v1 import feedback_service_pb2 as feedback_pb
from evenmesh.reranker.v1 import reranker_service_pb2 as reranker_pb
from evenmesh.retriever.v1 import collection_service_pb2 as collections_pb
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from evenmesh.wire.errors import InvalidField, MeshError
from evenmesh.wire.methods import facts_of
from evenmesh_generator.domain import (
    Answer,
    Augmentation,
    FinishReason,
    GenerationRequest,
    ModelDescription,
    Passage,
    RelevanceRequest,
)
from evenmesh_generator.engine import CallLimit, Generator
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.servicer import GeneratorServicer
from evenmesh_generator.settings import GeneratorSettings
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_reranker import codec as reranker_codec
from evenmesh_reranker.backends.cross_encoder import CrossEncoderReranker
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.feedback import codec as feedback_codec
from evenmesh_reranker.models.fusions import Fusions
from evenmesh_reranker.ports import Assigned, Row
from evenmesh_reranker.settings import RerankerSettings
from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.catalogue import RetrieverCatalogue
from evenmesh_retriever.codec import collections, embeddings, queries
from evenmesh_retriever.codec.passages import decoded_bytes
from evenmesh_retriever.domain import VectorArray
from evenmesh_retriever.embedding import Embedder
from evenmesh_retriever.engine import RetrieverEngine
from evenmesh_retriever.query_admission import QueryAdmission
from evenmesh_retriever.settings import RetrieverSettings
from tests.contract.test_method_facts import METHODS
from tests.support.largest import largest

SMALL: Final = 2**16
"""Requests up to this size are read on the event loop, and none has products: they cost what they have."""
OURS: Final = ("evenmesh.retriever.", "evenmesh.reranker.", "evenmesh.generator.")
PROCESSOR_TOKENS: Final = 15_000
"""Tokens that a small encoder reads in five seconds of one processor, a third of a millisecond each."""


class CountingEncoder:
    """Reads every byte as a token, which is the worst that a text can be, and counts."""

    name = fingerprint = "counting"
    dimension = 4
    device, precision = "cpu", "fp32"
    max_tokens = 256

    def __init__(self) -> None:
        self.read = 0

    def count_tokens(self, texts: Sequence[str]) -> int:
        return len(texts) * max(min(self.max_tokens, len(text.encode())) for text in texts)

    def encode_query(self, text: str) -> VectorArray:
        self.read += min(self.max_tokens, len(text.encode()))
        return np.full(4, 0.5, dtype=np.float32)

    def encode_passages(self, texts: Sequence[str], progress: Callable[[int], None]) -> VectorArray:
        self.read += self.count_tokens(texts)
        return np.full((len(texts), 4), 0.5, dtype=np.float32)


class CountingLanguageModel:
    """A language model that reads every sign as a token, each passage once for each question, and counts."""

    LONGEST = 256
    up = True

    def __init__(self) -> None:
        self._seen: set[tuple[str, str, str]] = set()
        self.read = 0

    def describe(self) -> ModelDescription:
        return ModelDescription(
            *("m", "v", "e", "a", "cpu", "float32", True, 512, 511, (Augmentation.FUSION_IN_DECODER,)),
            max_passage_tokens=self.LONGEST,
        )

    async def generate_stream(self, request: GenerationRequest, cancel: object) -> Any:
        yield await self.generate(request, cancel)

    async def generate(self, request: GenerationRequest, cancel: object) -> Answer:
        self._reads(request.question, request.passages)
        return Answer("", FinishReason.STOP, 1, 1, 0.0)

    async def score_relevance(self, request: RelevanceRequest, cancel: object) -> list[float]:
        self._reads(request.question, request.passages)
        return [0.5] * len(request.passages)

    def _reads(self, question: str, passages: Sequence[Passage]) -> None:
        for one in passages:
            if (question, one.title, one.text) not in self._seen:
                self._seen.add((question, one.title, one.text))
                self.read += min(self.LONGEST, len(f"{question}{one.title}{one.text}"))


class CountingModel:
    """A cross-encoder that reads every byte as a token, and counts what it scores."""

    version = "counting"
    device = "cpu"
    fusions = Fusions()
    reads_asking = True
    parallel = 1

    def __init__(self) -> None:
        self.read = 0

    def rows(self, query: str, texts: Sequence[str], agent: Agent) -> list[Row]:
        return [Row((1,) * min(256, len((query + text).encode())), None) for text in texts]

    def batches(self, lengths: Sequence[int]) -> None:
        """However they are split."""

    def probabilities(self, rows: Sequence[Row], adapters: Sequence[object]) -> list[float]:
        self.read += len(rows) * max(len(row.ids) for row in rows)
        return [0.5] * len(rows)

    async def model_for(self, agent: Agent) -> Assigned:
        return Assigned(cast(Any, self))


async def retrieve(message: retriever_pb.RetrieveRequest) -> tuple[int, int]:
    encoder, settings, pool = CountingEncoder(), RetrieverSettings(encoder="counting"), ComputePool(1, "test")
    catalogue = RetrieverCatalogue(settings, cache(analyzer), encoder)
    admission = QueryAdmission(settings.max_work, setting="EVENMESH_RETRIEVER_MAX_WORK")
    engine = RetrieverEngine(cast(Any, None), catalogue.retrievers, catalogue.default, pool, admission)
    message.retriever = "dense"
    for field in ("filter", "whole_collection"):
        message.ClearField(field)
    # One of these or shares, of which there may be most; a balance is for asks alone.
    for dial in ("alpha", "disparity", "relevance_loss", "balance"):
        message.sampling.ClearField(dial)
    try:
        await engine.retrieve(queries.query_of(message))
    finally:
        pool.close()
        assert encoder.read <= PROCESSOR_TOKENS
    return encoder.read, PROCESSOR_TOKENS


async def embed(message: retriever_pb.EmbedRequest) -> tuple[int, int]:
    encoder, settings, pool = CountingEncoder(), RetrieverSettings(encoder="counting"), ComputePool(1, "test")
    message.ClearField("model")
    message.ClearField("dimension")
    admission = QueryAdmission(settings.max_work, setting="EVENMESH_RETRIEVER_MAX_WORK")
    try:
        await Embedder(cast(Any, encoder), pool, admission).embed(embeddings.texts_of(message))
    finally:
        pool.close()
        assert encoder.read <= PROCESSOR_TOKENS
    return encoder.read, PROCESSOR_TOKENS


async def rerank(message: reranker_pb.RerankRequest) -> tuple[int, int]:
    model, settings, pool = CountingModel(), RerankerSettings(), ComputePool(2, "test")
    reranker = CrossEncoderReranker(
        cast(Any, model),
        pool=pool,
        batch_size=settings.batch_size,
        batch_tokens=settings.batch_tokens,
        max_delay_s=0,
        max_tokens=settings.max_request_tokens,
        setting="EVENMESH_RERANKER_MAX_REQUEST_TOKENS",
    )
    for field in ("top_k", "tolerance"):  # a fusion allows no tolerance
        message.ClearField(field)
    del message.first_stage.scores[len(message.passages) :]
    call = reranker_codec.decode_request(message, "tenant")
    try:
        await reranker.score(call.query, call.passages, call.agent)
    finally:
        await reranker.close()
        pool.close()
        assert model.read <= PROCESSOR_TOKENS
    return model.read, PROCESSOR_TOKENS


async def generated(method: str, message: Message) -> tuple[int, int]:
    """Call the servicer with a model that counts what it is given."""
    settings, pool = GeneratorSettings(), ComputePool(1, "test")
    model = CountingLanguageModel()
    servicer = GeneratorServicer(Admission(settings.max_work, "tokens"), pool)
    limit = CallLimit(settings.max_call_tokens)
    servicer.open(Generator([cast(Any, model)], TemplateLibrary.bundled(), limit))
    # Every sign may be a token, and two count as one.
    most = 2 * settings.max_call_tokens
    _clear_template(message)
    try:
        if method == "Generate":
            most = 100 * model.LONGEST  # an answer alone: its rows are read in steps, and it can be cancelled
            async for _ in servicer.Generate(cast(Any, message), cast(Any, None)):
                pass
        else:
            await getattr(servicer, method)(message, None)
    finally:
        pool.close()
        assert model.read <= most
    return model.read, most


def _clear_template(message: Any) -> None:
    """Leave out what a model refuses that has names of its own."""
    for one in [message, *getattr(message, "requests", ())]:
        for field in ("template", "turns", "model", "augmentation"):
            if field in one.DESCRIPTOR.fields_by_name:
                one.ClearField(field)


async def generate(message: generator_pb.GenerateRequest) -> tuple[int, int]:
    return await generated("Generate", message)


async def generate_batch(message: generator_pb.GenerateBatchRequest) -> tuple[int, int]:
    return await generated("GenerateBatch", message)


async def score_relevance(message: generator_pb.ScoreRelevanceRequest) -> tuple[int, int]:
    message.ClearField("top_k")
    message.ClearField("tolerance")
    return await generated("ScoreRelevance", message)


async def ingest(message: collections_pb.IngestRequest) -> tuple[int, int]:
    return decoded_bytes(message, message.passages), RetrieverSettings().max_tenant_ingest_bytes


async def delete_passages(message: collections_pb.DeletePassagesRequest) -> tuple[int, int]:
    return len(collections.ids_of(message.passage_ids)), collections.MAX_IDS


async def get_passages(message: collections_pb.GetPassagesRequest) -> tuple[int, int]:
    return len(collections.ids_of(message.passage_ids)), collections.MAX_IDS


async def record_feedback(message: feedback_pb.RecordFeedbackRequest) -> tuple[int, int]:
    ranked = sum(len(one.ranking) for one in message.feedback)
    if ranked > feedback_codec.MAX_RANKED:
        with pytest.raises(InvalidField, match="send less at once"):
            feedback_codec.decode_batch(message, "tenant")
        return 0, feedback_codec.MAX_RANKED
    feedback_codec.decode_batch(message, "tenant")
    return ranked, feedback_codec.MAX_RANKED


COSTS: Final[dict[str, Callable[[Any], Awaitable[tuple[int, int]]]]] = {
    "/evenmesh.retriever.v1.RetrieverService/Retrieve": retrieve,
    "/evenmesh.retriever.v1.RetrieverService/Embed": embed,
    "/evenmesh.retriever.v1.CollectionService/Ingest": ingest,
    "/evenmesh.retriever.v1.CollectionService/DeletePassages": delete_passages,
    "/evenmesh.retriever.v1.CollectionService/GetPassages": get_passages,
    "/evenmesh.reranker.v1.RerankerService/Rerank": rerank,
    "/evenmesh.reranker.v1.FeedbackService/RecordFeedback": record_feedback,
    "/evenmesh.generator.v1.GeneratorService/Generate": generate,
    "/evenmesh.generator.v1.GeneratorService/GenerateBatch": generate_batch,
    "/evenmesh.generator.v1.GeneratorService/ScoreRelevance": score_relevance,
}
"""What a request of each method would cost, and the most that it may; it raises where the method refuses."""


def test_every_method_that_takes_more_than_small_requests_has_a_cost() -> None:
    mine = {name for name in METHODS if name.lstrip("/").startswith(OURS)}
    assert mine >= COSTS.keys()
    assert {name for name in mine if facts_of(name).max_request_bytes > SMALL} == COSTS.keys()


@pytest.mark.parametrize("method", sorted(COSTS))
async def test_the_largest_requests_are_refused_or_cost_little(method: str) -> None:
    kind = METHODS[method].input_type._concrete_class
    costs = []
    for size in (facts_of(method).max_request_bytes, 2**20, 2**17, 2**14, 2**11):
        message = largest(kind, min(size, facts_of(method).max_request_bytes))
        try:
            async with asyncio.timeout(300):
                cost, most = await COSTS[method](message)
        except MeshError as error:
            if error.code != grpc.StatusCode.RESOURCE_EXHAUSTED or error.retry_after_s is not None:
                raise  # it would be sent again, and never fits
        else:
            assert cost <= most
            costs.append(cost)
    assert costs, "even the smallest was refused"
    assert max(costs) > 0
