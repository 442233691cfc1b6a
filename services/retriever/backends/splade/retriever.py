"""Learned sparse retrieval behind the retriever port."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

from meshkit.errors import FailedPrecondition
from services.retriever.backends.bm25.kernel import Kernel
from services.retriever.backends.splade.postings import ImpactPostings, SparseVector
from services.retriever.backends.splade.sparse_encoder import SparseTextEncoder
from services.retriever.domain import Filter, Passage, RetrieverInfo, Scored, Unranked
from services.retriever.ports import Snapshot


class ImpactIndex(Protocol):
    """Passages of a collection by the weights of their terms."""

    def search(self, query: SparseVector, n: int, where: Filter | None = None) -> Scored:
        """The best ``n`` of the passages that may be found, or all of them."""

    def scores(self, query: SparseVector, where: Filter | None = None) -> Unranked:
        """All of the passages that may be found."""


class SpladeRetriever:
    """Inner products of the weights that a model gives terms.

    Args:
        info: what it is.
        encoder: makes the weights of queries and passages.
        index: makes the index of a collection, encoding what has not been; None if it cannot.
        kernel: what runs the loops.
    """

    def __init__(
        self,
        info: RetrieverInfo,
        encoder: SparseTextEncoder,
        index: Callable[[Snapshot, SparseTextEncoder, Kernel], ImpactIndex | None],
        kernel: Kernel,
    ) -> None:
        self._info = info
        self._encoder = encoder
        self._index = index
        self._kernel = kernel
        self._indexes: WeakKeyDictionary[Snapshot, ImpactIndex] = WeakKeyDictionary()

    @property
    def info(self) -> RetrieverInfo:
        """What it is and runs on."""
        return self._info

    def prepare(self, snapshot: Snapshot) -> None:
        """Makes the snapshot's index; passages that are new are encoded now."""
        index = self._index(snapshot, self._encoder, self._kernel)
        if index is not None:
            self._indexes[snapshot] = index

    def search(self, snapshot: Snapshot, query: str, n: int, where: Filter | None = None) -> Scored:
        """The best ``n`` passages that may be found; those without a term of the query score 0.

        Raises:
            FailedPrecondition: the collection is kept where its passages cannot be encoded.
            InvalidField: no passage has an attribute of the filter.
        """
        return self._prepared(snapshot).search(self._encoder.encode_query(query), n, where)

    def scores(self, snapshot: Snapshot, query: str, where: Filter | None = None) -> Unranked:
        """All passages that may be found; raises as :meth:`search`."""
        return self._prepared(snapshot).scores(self._encoder.encode_query(query), where)

    def note(self, snapshot: Snapshot) -> str:
        """Nothing."""
        return ""

    def rank(self, passages: Sequence[Passage], query: str) -> Scored:
        """All of the passages, encoded now."""
        vectors = self._encoder.encode_passages([passage.content for passage in passages], lambda _: None)
        postings = ImpactPostings.build(vectors, self._encoder.vocabulary)
        return postings.search(self._encoder.encode_query(query), len(passages), self._kernel)

    def _prepared(self, snapshot: Snapshot) -> ImpactIndex:
        index = self._indexes.get(snapshot)
        if index is None:
            raise FailedPrecondition(
                "NOT_ENCODED", f"collection {snapshot.info.name!r} has no weights of {self._encoder.name!r}"
            )
        return index
