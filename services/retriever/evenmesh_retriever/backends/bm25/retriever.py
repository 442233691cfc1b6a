"""Implement the retriever port with BM25."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from evenmesh.wire.errors import FailedPrecondition
from evenmesh_retriever import cost
from evenmesh_retriever.backends.bm25.postings import Postings, TermCounts
from evenmesh_retriever.backends.bm25.weighting import Weighting
from evenmesh_retriever.backends.indexed import IndexedRetriever
from evenmesh_retriever.domain import Lexical, Passage, RetrieverInfo, Scored
from evenmesh_retriever.ports import Analyzer, Index, Snapshot
from evenmesh_retriever.steps import BYTES, Steps

W = TypeVar("W", bound=Weighting)


class _Searchable(Protocol):
    def search(self, tokens: Sequence[str], n: int) -> Scored: ...


class Bm25Retriever(IndexedRetriever[Sequence[str]], Generic[W]):
    """BM25 of titles and texts; passages without a term of the query score 0.

    Args:
        info: what it is.
        analyzer: the analyzer of a name; raises InvalidField for an unknown one.
        weighting: the formula, with the k1 and b of a collection if that has its own.
        index: makes the index of a collection; None if that keeps no term counts.
        small_index: makes the index of passages sent along, used once.
    """

    def __init__(
        self,
        info: RetrieverInfo,
        analyzer: Callable[[str], Analyzer],
        weighting: Callable[[Lexical], W],
        index: Callable[[Snapshot, W], Index[Sequence[str]] | None],
        small_index: Callable[[Postings, W], _Searchable],
    ) -> None:
        super().__init__(info)
        self._analyzer = analyzer
        self._weighting = weighting
        self._index = index
        self._small_index = small_index

    def rank(self, passages: Sequence[Passage], query: str) -> Steps[Scored]:
        """Return all of the passages, with the statistics (idf, average length) of these passages alone."""
        lexical = Lexical()
        analyzer = self._analyzer(lexical.analyzer)
        counts = TermCounts()
        size = 0
        for passage in passages:
            if size > BYTES:
                size = 0
                yield 0
            content = passage.content
            counts.add(analyzer.tokens(content))
            size += len(content)
        return self._small_index(counts.postings(), self._weighting(lexical)).search(
            analyzer.tokens(query), len(passages)
        )

    def work(self, sizes: Sequence[int]) -> int:
        """Return the work of analysing the passages."""
        return cost.analysis(sizes)

    def _indexed(self, snapshot: Snapshot) -> Index[Sequence[str]] | None:
        return self._index(snapshot, self._weighting(snapshot.info.lexical))

    def _asked(self, snapshot: Snapshot, query: str) -> Sequence[str]:
        return self._analyzer(snapshot.info.lexical.analyzer).tokens(query)

    def _lacking(self, snapshot: Snapshot) -> FailedPrecondition:
        info = snapshot.info
        return FailedPrecondition(
            "ANALYZER_MISMATCH",
            f"collection {info.name!r} was indexed by another version of analyzer "
            f"{info.lexical.analyzer!r} than this server's, {info.analyzer!r}: ingest its passages again",
        )
