"""Implement the retriever port with dense search."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from evenmesh.wire.errors import FailedPrecondition
from evenmesh_kit.compute.lengths import rows_at_once
from evenmesh_retriever import cost
from evenmesh_retriever.backends.dense import flat
from evenmesh_retriever.backends.indexed import IndexedRetriever, QueryVectors
from evenmesh_retriever.domain import Passage, RetrieverInfo, Scored, VectorArray
from evenmesh_retriever.ports import Encoder, Index, Snapshot
from evenmesh_retriever.steps import Steps, encoded


class DenseRetriever(IndexedRetriever[VectorArray]):
    """Inner products of vectors of length 1, which are cosines; finds only passages that have a vector.

    Args:
        info: what it is.
        encoder: makes the vectors of queries, and of passages sent along.
        index: makes the index of a collection from the vectors of the encoder of that fingerprint; None if
            there are none.
        cache: bytes of the queries whose vectors are kept, and of these vectors.
    """

    def __init__(
        self,
        info: RetrieverInfo,
        encoder: Encoder,
        index: Callable[[Snapshot, str], Index[VectorArray] | None],
        cache: int,
    ) -> None:
        super().__init__(info)
        self._encoder = encoder
        self._index = index
        self._vectors = QueryVectors(encoder, cache)

    def note(self, snapshot: Snapshot) -> str:
        """Return how many passages have a vector, if not all have."""
        embedded = snapshot.info.embedded
        return "" if embedded >= 1 else f"{embedded:.1%} of the passages have a vector yet"

    def rank(self, passages: Sequence[Passage], query: str) -> Steps[Scored]:
        """Return all of the passages, encoded now."""
        contents = [passage.content for passage in passages]
        vectors = yield from encoded(
            contents,
            lambda batch: list(self._encoder.encode_passages(batch, lambda _: None)),
            self._encoder.count_tokens,
            rows_at_once(self._encoder.device),
        )
        return flat.rank(np.array(vectors), self._vectors.of(query))

    def work(self, sizes: Sequence[int]) -> int:
        """Return the work of encoding the passages."""
        return cost.encoding(sizes, self._encoder.max_tokens)

    def _indexed(self, snapshot: Snapshot) -> Index[VectorArray] | None:
        return self._index(snapshot, self._encoder.fingerprint)

    def _asked(self, snapshot: Snapshot, query: str) -> VectorArray:
        return self._vectors.of(query)

    def _lacking(self, snapshot: Snapshot) -> FailedPrecondition:
        return FailedPrecondition(
            "NOT_EMBEDDED",
            f"no passage of collection {snapshot.info.name!r} has a vector of {self._encoder.name!r} "
            "yet: they are being made, see GetCollection; until then use a bm25 retriever",
        )
