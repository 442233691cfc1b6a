"""BM25 behind the retriever port."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from meshkit.errors import FailedPrecondition
from services.retriever.backends.bm25.postings import Postings, build
from services.retriever.backends.bm25.weighting import Weighting
from services.retriever.domain import Filter, Lexical, Passage, RetrieverInfo, Scored, Unranked
from services.retriever.ports import Analyzer, LexicalIndex, Snapshot

W = TypeVar("W", bound=Weighting)


class _Searchable(Protocol):
    def search(self, tokens: Sequence[str], n: int) -> Scored: ...


class Bm25Retriever(Generic[W]):
    """BM25 of titles and texts.

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
        index: Callable[[Snapshot, W], LexicalIndex | None],
        small_index: Callable[[Postings, W], _Searchable],
    ) -> None:
        self._info = info
        self._analyzer = analyzer
        self._weighting = weighting
        self._index = index
        self._small_index = small_index
        self._indexes: WeakKeyDictionary[Snapshot, LexicalIndex] = WeakKeyDictionary()

    @property
    def info(self) -> RetrieverInfo:
        """What it is and runs on."""
        return self._info

    def prepare(self, snapshot: Snapshot) -> None:
        """Makes the snapshot's index."""
        index = self._index(snapshot, self._weighting(snapshot.info.lexical))
        if index is not None:
            self._indexes[snapshot] = index

    def search(self, snapshot: Snapshot, query: str, n: int, where: Filter | None = None) -> Scored:
        """The best ``n`` passages that may be found; those without a term of the query score 0.

        Raises:
            FailedPrecondition: the collection keeps no term counts of its analyzer.
            InvalidField: no passage has an attribute of the filter.
        """
        return self._prepared(snapshot).search(self._tokens(snapshot, query), n, where)

    def scores(self, snapshot: Snapshot, query: str, where: Filter | None = None) -> Unranked:
        """All passages that may be found; raises as :meth:`search`."""
        return self._prepared(snapshot).scores(self._tokens(snapshot, query), where)

    def note(self, snapshot: Snapshot) -> str:
        """Nothing."""
        return ""

    def rank(self, passages: Sequence[Passage], query: str) -> Scored:
        """All of the passages, with the statistics (idf, average length) of these passages alone."""
        lexical = Lexical()
        analyzer = self._analyzer(lexical.analyzer)
        postings = build(analyzer.tokens(passage.content) for passage in passages)
        return self._small_index(postings, self._weighting(lexical)).search(
            analyzer.tokens(query), len(passages)
        )

    def _tokens(self, snapshot: Snapshot, query: str) -> Sequence[str]:
        return self._analyzer(snapshot.info.lexical.analyzer).tokens(query)

    def _prepared(self, snapshot: Snapshot) -> LexicalIndex:
        index = self._indexes.get(snapshot)
        if index is None:
            info = snapshot.info
            raise FailedPrecondition(
                "ANALYZER_MISMATCH",
                f"collection {info.name!r} was indexed by another version of analyzer "
                f"{info.lexical.analyzer!r} than this server's, {info.analyzer!r}: ingest its passages again",
            )
        return index
