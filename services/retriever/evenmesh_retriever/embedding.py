"""Encode the texts of callers, with the encoder that collections are searched with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenmesh.wire.errors import FailedPrecondition, InvalidField, NotFound
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.compute.lengths import rows_at_once
from evenmesh_retriever import cost
from evenmesh_retriever.domain import VectorArray
from evenmesh_retriever.ports import Encoder
from evenmesh_retriever.query_admission import QueryAdmission
from evenmesh_retriever.steps import Steps, encoded, run


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts to encode.

    Attributes:
        texts: at least one.
        are_queries: whether they are searched by; else they are found.
        model: name of the encoder; empty for any.
        dimension: length of vectors that is expected; None for any.
        held_bytes: memory of the request. Bytes.
    """

    texts: Sequence[str]
    are_queries: bool = False
    model: str = ""
    dimension: int | None = None
    held_bytes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """The vectors of texts.

    Attributes:
        vectors: of length 1, ``[texts, dimension]``, float32.
        tokens: those that the encoder read of each text, [1, inf).
        model: name of the encoder.
        fingerprint: names its weights and settings.
        max_tokens: most tokens that it reads of a text, [1, inf).
    """

    vectors: VectorArray
    tokens: Sequence[int]
    model: str
    fingerprint: str
    max_tokens: int


class Embedder:
    """Encodes texts in the threads and within the admission of queries.

    Args:
        encoder: the encoder; None where there is none.
        pool: the threads.
        admission: bounds the work.
    """

    def __init__(self, encoder: Encoder | None, pool: ComputePool, admission: QueryAdmission) -> None:
        self._encoder = encoder
        self._pool = pool
        self._admission = admission

    async def embed(self, asked: Texts) -> Embedded:
        """Return the vectors of texts; cancelling the call ends it after the running batch.

        Raises:
            FailedPrecondition: there is no encoder.
            NotFound: it has another name.
            InvalidField: its vectors have another length.
            MeshError: RESOURCE_EXHAUSTED, the texts are more work than a query may be.
            Overloaded: too much work is in flight.
        """
        encoder = self._encoder
        if encoder is None:
            raise FailedPrecondition(
                "NO_ENCODER", "this retriever has no encoder: set EVENMESH_RETRIEVER_ENCODER"
            )
        if asked.model not in ("", encoder.name):
            raise NotFound("model", f"this retriever encodes with {encoder.name!r} alone")
        if asked.dimension not in (None, encoder.dimension):
            raise InvalidField(
                "dimension", f"must be that of {encoder.name!r}, {encoder.dimension}, got {asked.dimension}"
            )
        sizes = [len(text.encode()) for text in asked.texts]
        work = 1 + cost.encoding(sizes, encoder.max_tokens) + cost.holding(asked.held_bytes)
        self._admission.check(work, "texts", _ADVICE)
        async with self._admission.admit(work):
            found = await run(self._pool, _encoded(encoder, asked), self._check_tokens)
        return found.result

    def _check_tokens(self, tokens: int) -> None:
        self._admission.check_read(tokens, "texts", _ADVICE)


_ADVICE = "send fewer or shorter texts"


def _encoded(encoder: Encoder, asked: Texts) -> Steps[Embedded]:
    def encode(batch: Sequence[str]) -> list[tuple[VectorArray, int]]:
        if asked.are_queries:
            vectors = [encoder.encode_query(text) for text in batch]
        else:
            vectors = list(encoder.encode_passages(batch, lambda _: None))
        return [(vector, encoder.count_tokens([text])) for text, vector in zip(batch, vectors, strict=True)]

    found = yield from encoded(asked.texts, encode, encoder.count_tokens, rows_at_once(encoder.device))
    return Embedded(
        vectors=np.array([vector for vector, _ in found], dtype=np.float32),
        tokens=[tokens for _, tokens in found],
        model=encoder.name,
        fingerprint=encoder.fingerprint,
        max_tokens=encoder.max_tokens,
    )
