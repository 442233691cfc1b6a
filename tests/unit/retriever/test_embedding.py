"""Texts of callers, encoded within the admission of queries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import grpc
import numpy as np
import pytest

from evenmesh.retriever.v1 import retriever_service_pb2 as pb
from evenmesh.wire.errors import FailedPrecondition, InvalidField, MeshError, NotFound
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_retriever.codec import embeddings
from evenmesh_retriever.domain import VectorArray
from evenmesh_retriever.embedding import Embedder, Texts
from evenmesh_retriever.query_admission import QueryAdmission


class Letters:
    """Counts letters; a query is known by its sign."""

    name, fingerprint, device, precision = "letters", "f1", "cpu", "fp32"
    max_tokens, dimension = 8, 2

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def count_tokens(self, texts: Sequence[str]) -> int:
        return len(texts) * max(len(text.split()) for text in texts)

    def encode_query(self, text: str) -> VectorArray:
        self.batches.append([text])
        return np.array([-1, len(text)], np.float32)

    def encode_passages(self, texts: Sequence[str], progress: Callable[[int], None]) -> VectorArray:
        self.batches.append(list(texts))
        return np.array([[1, len(text)] for text in texts], np.float32)


@pytest.fixture
async def pool() -> AsyncIterator[ComputePool]:
    pool = ComputePool(1, "test")
    yield pool
    pool.close()


def embedder(encoder: Letters | None, pool: ComputePool, capacity: int = 2**18) -> Embedder:
    return Embedder(encoder, pool, QueryAdmission(capacity, setting="EVENMESH_X"))


async def test_vectors_are_in_the_order_of_the_texts(pool: ComputePool) -> None:
    encoder = Letters()
    found = await embedder(encoder, pool).embed(Texts(["a b", "a", "a b c", "a"]))
    assert found.vectors.tolist() == [[1, 3], [1, 1], [1, 5], [1, 1]]
    assert list(found.tokens) == [2, 1, 3, 1]
    assert (found.model, found.fingerprint, found.max_tokens) == ("letters", "f1", 8)
    assert encoder.batches == [["a b c", "a b", "a"]]  # equal ones once


async def test_queries_are_encoded_as_queries(pool: ComputePool) -> None:
    found = await embedder(Letters(), pool).embed(Texts(["a b"], are_queries=True))
    assert found.vectors.tolist() == [[-1, 3]]


async def test_another_encoder_or_length_is_refused_before_work(pool: ComputePool) -> None:
    encoder = Letters()
    with pytest.raises(NotFound, match="'letters' alone"):
        await embedder(encoder, pool).embed(Texts(["a"], model="other"))
    with pytest.raises(InvalidField, match="must be that of 'letters', 2, got 3"):
        await embedder(encoder, pool).embed(Texts(["a"], dimension=3))
    with pytest.raises(FailedPrecondition, match="EVENMESH_RETRIEVER_ENCODER"):
        await embedder(None, pool).embed(Texts(["a"]))
    assert not encoder.batches


async def test_too_much_work_is_refused_before_any_of_it(pool: ComputePool) -> None:
    """Of a capacity of 400 a call may ask for 20: two texts of 8 tokens or more, and one for the call."""
    encoder = Letters()
    small = embedder(encoder, pool, 400)
    assert len((await small.embed(Texts(["long " * 9] * 2))).vectors) == 2
    encoder.batches.clear()
    with pytest.raises(MeshError, match="asks for about 25 tokens") as refused:
        await small.embed(Texts(["long " * 9] * 3))
    assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (refused.value.field, refused.value.retry_after_s) == ("texts", None)
    assert not encoder.batches


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.EmbedRequest(), "texts"),
        (pb.EmbedRequest(texts=["a"] * 257), "texts"),
        (pb.EmbedRequest(texts=["a", " "]), "texts[1]"),
        (pb.EmbedRequest(texts=["é" * 32_769]), "texts[0]"),
        (pb.EmbedRequest(texts=["a"], kind=7), "kind"),  # type: ignore[arg-type]
        (pb.EmbedRequest(texts=["a"], dimension=0), "dimension"),
    ],
)
def test_what_is_outside_the_bounds_is_refused(request_: pb.EmbedRequest, field: str) -> None:
    with pytest.raises(InvalidField) as refused:
        embeddings.texts_of(request_)
    assert refused.value.field == field
