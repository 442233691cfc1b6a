"""BM25 behind the retriever port."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable
from weakref import WeakKeyDictionary

from meshkit.errors import FailedPrecondition
from services.retriever.backends.bm25.postings import Postings, build
from services.retriever.domain import Passage, RetrieverInfo, Scored
from services.retriever.ports import Analyzer, LexicalIndex, Snapshot


@runtime_checkable
class HasPostings(Protocol):
    """A snapshot that keeps term counts, made by the analyzer its info names."""

    @property
    def postings(self) -> Postings:
        """Term counts of its passages."""


class Bm25Retriever:
    """BM25 of titles and texts.

    Args:
        info: what it is.
        analyzer: makes tokens of queries, and of passages sent along.
        index: makes the index of a collection.
        small_index: makes the index of passages sent along, used once.
    """

    def __init__(
        self,
        info: RetrieverInfo,
        analyzer: Analyzer,
        index: Callable[[Postings], LexicalIndex],
        small_index: Callable[[Postings], LexicalIndex],
    ) -> None:
        self._info = info
        self._analyzer = analyzer
        self._index = index
        self._small_index = small_index
        self._indexes: WeakKeyDictionary[Snapshot, LexicalIndex] = WeakKeyDictionary()

    @property
    def info(self) -> RetrieverInfo:
        """What it is and runs on."""
        return self._info

    def prepare(self, snapshot: Snapshot) -> None:
        """Makes the snapshot's index."""
        if isinstance(snapshot, HasPostings) and snapshot.info.analyzer == self._analyzer.name:
            self._indexes[snapshot] = self._index(snapshot.postings)

    def search(self, snapshot: Snapshot, query: str, n: int) -> Scored:
        """The best ``min(n, len(snapshot))`` passages; those without a term of the query score 0.

        Raises:
            FailedPrecondition: the collection's terms were made by another analyzer.
        """
        index = self._indexes.get(snapshot)
        if index is None:
            info = snapshot.info
            raise FailedPrecondition(
                "ANALYZER_MISMATCH",
                f"collection {info.name!r} was indexed by analyzer {info.analyzer!r} and this server runs "
                f"{self._analyzer.name!r}: ingest its passages again",
            )
        return index.search(self._analyzer.tokens(query), n)

    def rank(self, passages: Sequence[Passage], query: str) -> Scored:
        """All of the passages, with the statistics (idf, average length) of these passages alone."""
        index = self._small_index(build(self._analyzer.tokens(passage.content) for passage in passages))
        return index.search(self._analyzer.tokens(query), len(passages))
