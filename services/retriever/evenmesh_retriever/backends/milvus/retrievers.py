"""Search in Milvus; rank inline candidates here, as without Milvus."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

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
)
from evenmesh_retriever.ports import Encoder, Retriever, Snapshot
from evenmesh_retriever.steps import Steps

_CHANGED: Final = "the collection was changed while it was searched: the answer may mix two versions"

_Asking = Callable[[MilvusSnapshot, str], Question]
"""Returns what to look for in a collection, for a query."""


class MilvusRetriever:
    """A retriever over collections in Milvus.

    Args:
        info: what it is.
        asking: how to ask.
        local: the same without Milvus; ranks what a request brings along.
        differs: returns what an answer does otherwise than without Milvus.
    """

    def __init__(
        self,
        info: RetrieverInfo,
        asking: _Asking,
        local: Retriever,
        differs: Callable[[MilvusSnapshot], str] = lambda _: "",
    ) -> None:
        self.info = info
        self._asking = asking
        self._local = local
        self._differs = differs

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
        return there.find(self._asking(there, query), n, where)

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
        return "; ".join(filter(None, [self._differs(there), _CHANGED if there.unsettled else ""]))

    def rank(self, passages: Sequence[Passage], query: str) -> Steps[Scored]:
        """Return all of the passages, ranked without Milvus."""
        return self._local.rank(passages, query)

    def work(self, sizes: Sequence[int]) -> int:
        """Return the work without Milvus."""
        return self._local.work(sizes)


def _bm25(_: MilvusSnapshot, query: str) -> Question:
    """Ask for Milvus's own BM25 of the text."""
    return Question(LEXICAL, query, _distances)


def _otherwise(snapshot: MilvusSnapshot) -> str:
    record = snapshot.record
    return (
        f"BM25 is Milvus's (its analyzer {record.analyzer!r}, k1={record.k1:g}, b={record.b:g}, an idf "
        "that is never negative and may be that of a part of the collection) and differs from evenmesh's"
    )


def _dense(encoder: Encoder, cache: int) -> _Asking:
    """Ask for inner products of vectors, worked out again here in float64."""
    vectors = QueryVectors(encoder, cache)

    def question(snapshot: MilvusSnapshot, query: str) -> Question:
        record = snapshot.record
        if record.encoder_fingerprint != encoder.fingerprint:
            kept = f"vectors of {record.encoder or 'no encoder'!r}"
            raise _encoded_otherwise("NOT_EMBEDDED", record.name, kept, encoder.name)
        vector = vectors.of(query)

        def scores(found: Sequence[Row]) -> FloatArray:
            if not found:
                return np.empty(0)
            return products(np.array([row[DENSE] for row in found], dtype=np.float32), vector)

        def parameters(most: int) -> Mapping[str, int]:
            return {"ef": max(64, most)} if record.dense_index == "HNSW" else {}

        return Question(DENSE, vector, scores, parameters, (DENSE,), fill=False)

    return question


def _splade(encoder: SparseTextEncoder, cache: int) -> _Asking:
    """Ask for inner products of the weights that a model gives terms."""
    vectors = QueryVectors(encoder, cache)

    def question(snapshot: MilvusSnapshot, query: str) -> Question:
        record = snapshot.record
        if record.sparse_fingerprint != encoder.fingerprint:
            kept = f"weights of {record.sparse or 'no model'!r}"
            raise _encoded_otherwise("NOT_ENCODED", record.name, kept, encoder.name)
        vector = vectors.of(query)
        weights = dict(zip(vector.terms.tolist(), vector.weights.tolist(), strict=True))
        # A vector must not be empty; no passage has the term after the last.
        return Question(IMPACTS, weights or {encoder.vocabulary + 1: 1.0}, _distances)

    return question


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

    def over(
        name: str, description: str, asking: _Asking, *differs: Callable[[MilvusSnapshot], str]
    ) -> Retriever:
        info = replace(local[name].info, description=description, engine="milvus")
        return MilvusRetriever(info, asking, local[name], *differs)

    bm25 = f"BM25 by Milvus {version}, with its analyzer and statistics"
    found = {"bm25-lucene": over("bm25-lucene", bm25, _bm25, _otherwise)}
    if encoder is not None:
        dense = f"cosine of {encoder.name} vectors, {encoder.precision}, found by Milvus {version}"
        found["dense"] = over("dense", dense, _dense(encoder, cache))
    if sparse is not None:
        splade = f"inner product of term weights by {sparse.name}, found by Milvus {version}"
        found["splade"] = over("splade", splade, _splade(sparse, cache))
    return found


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
