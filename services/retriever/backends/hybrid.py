"""Two retrievers fused by rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ragcore.fusion import reciprocal_rank_fusion
from services.retriever.domain import Filter, IntArray, Passage, RetrieverInfo, Scored
from services.retriever.ports import Retriever, Snapshot

_POOL: Final = 100
_NOTHING: Final = Scored(np.empty(0, dtype=np.int64), np.empty(0))


class HybridRetriever:
    """Reciprocal rank fusion of a lexical and a dense retriever (Cormack, Clarke and Buettcher 2009).

    Each side gives its best 100, or as many as are asked for if that is more. Passages that share no term
    with the query have no rank on the lexical side, and passages without a vector, while vectors are being
    made, none on the dense side.

    Args:
        info: what it is.
        lexical: scores above 0 where the query matches.
        dense: scores every passage.
    """

    def __init__(self, info: RetrieverInfo, lexical: Retriever, dense: Retriever) -> None:
        self._info = info
        self._lexical = lexical
        self._dense = dense

    @property
    def info(self) -> RetrieverInfo:
        """What it is and runs on."""
        return self._info

    def prepare(self, snapshot: Snapshot) -> None:
        """Leaves it to the two sides, which are retrievers of the server too."""

    def search(self, snapshot: Snapshot, query: str, n: int, where: Filter | None = None) -> Scored:
        """The best ``n`` passages that may be found.

        Raises:
            FailedPrecondition: the collection lacks what either side needs.
            InvalidField: no passage has an attribute of the filter.
        """
        pool = max(n, _POOL)
        lexical = self._lexical.search(snapshot, query, pool, where)
        dense = self._dense.search(snapshot, query, pool, where) if snapshot.info.embedded else _NOTHING
        # Fused under numbers that ascend with ids, by which equal scores are ordered.
        by_id = snapshot.by_id(np.union1d(lexical.rows, dense.rows))
        order = np.argsort(by_id)
        fused = _fused(_renumbered(lexical, by_id, order), _renumbered(dense, by_id, order), n)
        return Scored(by_id[fused.rows], fused.scores)

    def note(self, snapshot: Snapshot) -> str:
        """What either side has to say."""
        return "; ".join(filter(None, (self._lexical.note(snapshot), self._dense.note(snapshot))))

    def rank(self, passages: Sequence[Passage], query: str) -> Scored:
        """All of the passages."""
        return _fused(self._lexical.rank(passages, query), self._dense.rank(passages, query), len(passages))


def _renumbered(scored: Scored, rows: IntArray, order: IntArray) -> Scored:
    """Places in ``rows``, which ``order`` sorts, instead of rows."""
    return Scored(order[np.searchsorted(rows, scored.rows, sorter=order)], scored.scores)


def _fused(lexical: Scored, dense: Scored, n: int) -> Scored:
    matching = lexical.rows[lexical.scores > 0]
    fused = reciprocal_rank_fusion([matching.tolist(), dense.rows.tolist()])[:n]
    return Scored(
        np.array([entry.item for entry in fused], dtype=np.int64), np.array([entry.score for entry in fused])
    )
