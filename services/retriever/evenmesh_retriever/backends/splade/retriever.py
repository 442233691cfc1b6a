"""Implement the retriever port with learned sparse search."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from evenmesh.wire.errors import FailedPrecondition
from evenmesh_kit.compute.lengths import rows_at_once
from evenmesh_retriever import cost
from evenmesh_retriever.backends.indexed import IndexedRetriever
from evenmesh_retriever.backends.splade.postings import ImpactPostings, SparseTextEncoder, SparseVector
from evenmesh_retriever.domain import Passage, RetrieverInfo, Scored
from evenmesh_retriever.ports import Index, Snapshot
from evenmesh_retriever.steps import Steps, encoded


class SpladeRetriever(IndexedRetriever[SparseVector]):
    """Inner products of the weights that a model gives terms; passages without a term of the query score 0.

    Args:
        info: what it is.
        encoder: makes the weights of queries and passages.
        index: makes the index of a collection, encoding what has not been; None if it cannot.
    """

    def __init__(
        self,
        info: RetrieverInfo,
        encoder: SparseTextEncoder,
        index: Callable[[Snapshot, SparseTextEncoder], Index[SparseVector] | None],
    ) -> None:
        super().__init__(info)
        self._encoder = encoder
        self._index = index

    def rank(self, passages: Sequence[Passage], query: str) -> Steps[Scored]:
        """Return all of the passages, encoded now."""
        contents = [passage.content for passage in passages]
        vectors = yield from encoded(
            contents,
            lambda batch: self._encoder.encode_passages(batch, lambda _: None),
            self._encoder.count_tokens,
            rows_at_once(self._encoder.device),
        )
        postings = ImpactPostings.build(vectors, self._encoder.vocabulary)
        return postings.search(self._encoder.encode_query(query), len(passages))

    def work(self, sizes: Sequence[int]) -> int:
        """Return the work of encoding the passages."""
        return cost.encoding(sizes, self._encoder.max_tokens)

    def _indexed(self, snapshot: Snapshot) -> Index[SparseVector] | None:
        return self._index(snapshot, self._encoder)

    def _asked(self, snapshot: Snapshot, query: str) -> SparseVector:
        return self._encoder.encode_query(query)

    def _lacking(self, snapshot: Snapshot) -> FailedPrecondition:
        return FailedPrecondition(
            "NOT_ENCODED", f"collection {snapshot.info.name!r} has no weights of {self._encoder.name!r}"
        )
