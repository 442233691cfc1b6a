"""Search in Milvus; rank inline candidates here, as without Milvus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

import numpy as np

from evenmesh.wire.errors import FailedPrecondition
from evenmesh_retriever.backends.dense.rescoring import products
from evenmesh_retriever.backends.indexed import QueryVectors
from evenmesh_retriever.backends.milvus.connection import Row
from evenmesh_retriever.backends.milvus.rows import DENSE, IMPACTS, LEXICAL
from evenmesh_retriever.backends.milvus.snapshot import MilvusSnapshot, Question
from evenmesh_retriever.backends.splade.postings import SparseTextEncoder
from evenmesh_retriever.domain import (
    Filter,
    FloatArray,
    Passage,
    RetrieverInfo,
    Scored,
    Unranked,
    VectorArray,
)
from evenmesh_retriever.ports import Encoder, Retriever, Snapshot
from evenmesh_retriever.steps import Steps

_CHANGED: Final = "the collection was changed while it was searched: the answer may mix two versions"


class _Asking(Protocol):
    """One way to ask Milvus."""

    fill: bool
    """Whether passages that Milvus does not find score 0."""

    def question(self, snapshot: MilvusSnapshot, query: str) -> Question:
        """Return what to look for."""

    def note(self, snapshot: MilvusSnapshot) -> str:
        """Return what an answer does otherwise than without Milvus."""


class MilvusRetriever:
    """A retriever over collections in Milvus.

    Args:
        info: what it is.
        asking: how to ask.
        local: the same without Milvus; ranks what a request brings along.
    """

    def __init__(self, info: RetrieverInfo, asking: _Asking, local: Retriever) -> None:
        self.info = info
        self._asking = asking
        self._local = local

    def prepare(self, snapshot: Snapshot) -> None:
        """Nothing: Milvus has the indexes."""

    def search(self, snapshot: Snapshot, query: str, n: int, where: Filter | None = None) -> Scored:
        """Return the best ``n`` passages that may be found.

        Raises:
            NotFound: there is no such collection.
            FailedPrecondition: it has no vectors of this server's encoder.
            InvalidField: no passage has an attribute of the filter.
            Unavailable: Milvus does not answer.
        """
        there = _milvus(snapshot)
        return there.find(self._asking.question(there, query), n, where, fill=self._asking.fill)

    def scores(self, snapshot: Snapshot, query: str, where: Filter | None = None) -> Unranked:
        """Nothing: Milvus gives no more than its best.

        Raises:
            FailedPrecondition: always.
        """
        raise FailedPrecondition(
            "NOT_SCORED_WHOLE",
            f"{self.info.name!r} of a collection in Milvus gives its best passages and no score of all of "
            "them: draw from a pool (depth) instead of whole_collection",
        )

    def note(self, snapshot: Snapshot) -> str:
        """Return how it differs from the retriever of this name without Milvus."""
        there = _milvus(snapshot)
        return "; ".join(filter(None, [self._asking.note(there), _CHANGED if there.unsettled else ""]))

    def rank(self, passages: Sequence[Passage], query: str) -> Steps[Scored]:
        """Return all of the passages, ranked without Milvus."""
        return self._local.rank(passages, query)

    def work(self, sizes: Sequence[int]) -> int:
        """Return the work without Milvus."""
        return self._local.work(sizes)


class _Bm25:
    """Milvus's own BM25 of the text."""

    fill = True

    def question(self, snapshot: MilvusSnapshot, query: str) -> Question:
        return Question(LEXICAL, query, _distances)

    def note(self, snapshot: MilvusSnapshot) -> str:
        record = snapshot.record
        return (
            f"BM25 is Milvus's (its analyzer {record.analyzer!r}, k1={record.k1:g}, b={record.b:g}, an idf "
            "that is never negative and may be that of a part of the collection) and differs from evenmesh's"
        )


class _Dense:
    """Inner products of vectors, worked out again here in float64."""

    fill = False

    def __init__(self, encoder: Encoder, cache: int) -> None:
        self._encoder = encoder
        self._vectors = QueryVectors(encoder, cache)

    def question(self, snapshot: MilvusSnapshot, query: str) -> Question:
        record = snapshot.record
        if record.encoder_fingerprint != self._encoder.fingerprint:
            kept = f"vectors of {record.encoder or 'no encoder'!r}"
            raise _encoded_otherwise("NOT_EMBEDDED", record.name, kept, self._encoder.name)
        vector = self._vectors.of(query)

        def scores(found: Sequence[Row]) -> FloatArray:
            if not found:
                return np.empty(0)
            vectors: VectorArray = np.array([row[DENSE] for row in found], dtype=np.float32)
            return products(vectors, vector)

        def parameters(most: int) -> Mapping[str, int]:
            return {"ef": max(64, most)} if record.dense_index == "HNSW" else {}

        return Question(DENSE, vector, scores, parameters, (DENSE,))

    def note(self, snapshot: MilvusSnapshot) -> str:
        return ""


class _Splade:
    """Inner products of the weights that a model gives terms."""

    fill = True

    def __init__(self, encoder: SparseTextEncoder, cache: int) -> None:
        self._encoder = encoder
        self._vectors = QueryVectors(encoder, cache)

    def question(self, snapshot: MilvusSnapshot, query: str) -> Question:
        record = snapshot.record
        if record.sparse_fingerprint != self._encoder.fingerprint:
            kept = f"weights of {record.sparse or 'no model'!r}"
            raise _encoded_otherwise("NOT_ENCODED", record.name, kept, self._encoder.name)
        vector = self._vectors.of(query)
        weights = dict(zip(vector.terms.tolist(), vector.weights.tolist(), strict=True))
        # A vector must not be empty; no passage has the term after the last.
        return Question(IMPACTS, weights or {self._encoder.vocabulary + 1: 1.0}, _distances)

    def note(self, snapshot: MilvusSnapshot) -> str:
        return ""


def over_milvus(
    local: Mapping[str, Retriever],
    encoder: Encoder | None,
    sparse: SparseTextEncoder | None,
    *,
    version: str,
    cache: int,
) -> dict[str, Retriever]:
    """Return the retrievers of a server whose collections are in Milvus, by name.

    Args:
        local: those without Milvus; ``hybrid`` is not among them.
        encoder: makes the vectors of ``dense``.
        sparse: makes the weights of ``splade``.
        version: version of the Milvus.
        cache: bytes of the queries whose vectors are kept, and of these vectors.
    """
    askings: dict[str, tuple[_Asking, str]] = {
        "bm25-lucene": (_Bm25(), f"BM25 by Milvus {version}, with its analyzer and statistics")
    }
    if encoder is not None:
        askings["dense"] = (
            _Dense(encoder, cache),
            f"cosine of {encoder.name} vectors, {encoder.precision}, found by Milvus {version}",
        )
    if sparse is not None:
        askings["splade"] = (
            _Splade(sparse, cache),
            f"inner product of term weights by {sparse.name}, found by Milvus {version}",
        )
    return {
        name: MilvusRetriever(
            replace(local[name].info, description=description, engine="milvus"), asking, local[name]
        )
        for name, (asking, description) in askings.items()
    }


def _encoded_otherwise(reason: str, collection: str, kept: str, own: str) -> FailedPrecondition:
    """Return the error of a search in what another model than this server's, ``own``, has made."""
    return FailedPrecondition(
        reason,
        f"collection {collection!r} has {kept}, not of this server's {own!r}: export and import it, or use a "
        "bm25 retriever",
    )


def _distances(found: Sequence[Row]) -> FloatArray:
    """Milvus's scores, none of which is below 0 here; Milvus Lite gives those of BM25 with a minus."""
    return np.abs(np.array([row["distance"] for row in found], dtype=np.float64))


def _milvus(snapshot: Snapshot) -> MilvusSnapshot:
    if not isinstance(snapshot, MilvusSnapshot):
        raise FailedPrecondition("NOT_IN_MILVUS", f"collection {snapshot.info.name!r} is not in Milvus")
    return snapshot
