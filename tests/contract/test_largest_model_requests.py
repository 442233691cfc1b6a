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
from evenmesh_generator.servicer import _CALL, GeneratorServicer
from evenmesh_generator.settings import GeneratorSettings
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_reranker import codec as reranker_codec
from evenmesh_reranker.backends.cross_encoder import CrossEncoderReranker
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.feedback import codec as feedback_codec
from evenmesh_reranker.ports import Assigned, Row
from evenmesh_reranker.settings import RerankerSettings
from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.catalogue import Catalogue
from evenmesh_retriever.codec import collections, queries
from evenmesh_retriever.codec.passages import decoded_bytes
from evenmesh_retriever.domain import VectorArray
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


class CountingModel:
    """A cross-encoder that reads every byte as a token, and counts what it scores."""

    version = "counting"

    def __init__(self) -> None:
        self.read = 0

    def rows(self, query: str, texts: Sequence[str], agent: Agent) -> list[Row]:
        return [Row((1,) * min(256, len((query + text).encode())), None) for text in texts]

    def probabilities(self, rows: Sequence[Row], adapters: Sequence[object]) -> list[float]:
        self.read += len(rows) * max(len(row.ids) for row in rows)
        return [0.5] * len(rows)

    async def model_for(self, agent: Agent) -> Assigned:
        return Assigned(cast(Any, self))


async def retrieve(message: retriever_pb.RetrieveRequest) -> tuple[int, int]:
    encoder, settings, pool = CountingEncoder(), RetrieverSettings(encoder="counting"), ComputePool(1, "test")
    catalogue = Catalogue(settings, cache(analyzer), encoder)
    admission = QueryAdmission(settings.max_work, setting="EVENMESH_RETRIEVER_MAX_WORK")
    engine = RetrieverEngine(cast(Any, None), catalogue.retrievers, catalogue.default, pool, admission)
    message.retriever = "dense"
    for field in ("filter", "whole_collection"):
        message.ClearField(field)
    try:
        await engine.retrieve(queries.query_of(message))
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
    message.ClearField("top_k")
    call = reranker_codec.decode_request(message, "tenant")
    try:
        await reranker.score(call.query, call.passages, call.agent)
    finally:
        await reranker.close()
        pool.close()
        assert model.read <= PROCESSOR_TOKENS
    return model.read, PROCESSOR_TOKENS


async def generated(method: str, message: Message) -> tuple[int, int]:
    """Call the servicer with an engine that counts what it is given."""
    capacity, pool = GeneratorSettings().max_work, ComputePool(1, "test")
    admission = Admission(capacity, "tokens")
    servicer = GeneratorServicer(admission, pool)
    asked = 0

    class Engine:
        def name_of(self, _: str) -> str:
            return "model"

        async def stream(self, request: object, cancel: object) -> Any:
            nonlocal asked
            asked += admission.in_flight
            yield ""

        async def batch(self, requests: Sequence[Any], cancel: object, admit: Any) -> list[MeshError]:
            for one in requests:
                await self._admitted(one, admit)
            return [MeshError(grpc.StatusCode.UNAVAILABLE, "NO_MODEL", "")] * len(requests)

        async def relevance(self, request: Any, *_: Any, admit: Any, **__: Any) -> Any:
            for passage in request.passages:
                await self._admitted(
                    type(request)(request.question, (passage,), request.normalization), admit
                )
            raise MeshError(grpc.StatusCode.UNAVAILABLE, "NO_MODEL", "")

        async def _admitted(self, piece: Any, admit: Any) -> None:
            nonlocal asked
            async with admit(piece):
                asked += admission.in_flight

    servicer.open(cast(Any, Engine()))
    try:
        if method == "Generate":
            async for _ in servicer.Generate(cast(Any, message), cast(Any, None)):
                pass
        else:
            await getattr(servicer, method)(message, None)
    except MeshError as error:
        if error.reason != "NO_MODEL":
            raise
    finally:
        pool.close()
        assert asked <= _CALL * capacity
    return asked, _CALL * capacity


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
