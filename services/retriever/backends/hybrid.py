"""Two retrievers fused by rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ragcore.fusion import reciprocal_rank_fusion
from services.retriever.domain import Passage, RetrieverInfo, Scored
from services.retriever.ports import Retriever, Snapshot

_POOL: Final = 100


class HybridRetriever:
    """Reciprocal rank fusion of a lexical and a dense retriever (Cormack, Clarke and Buettcher 2009).

    Each side gives its best 100, or as many as are asked for if that is more. Passages that share no term
    with the query have no rank on the lexical side.

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

    def search(self, snapshot: Snapshot, query: str, n: int) -> Scored:
        """The best ``min(n, len(snapshot))`` passages.

        Raises:
            FailedPrecondition: the collection lacks what either side needs.
        """
        pool = max(n, _POOL)
        return _fused(
            self._lexical.search(snapshot, query, pool), self._dense.search(snapshot, query, pool), n
        )

    def rank(self, passages: Sequence[Passage], query: str) -> Scored:
        """All of the passages."""
        return _fused(self._lexical.rank(passages, query), self._dense.rank(passages, query), len(passages))


def _fused(lexical: Scored, dense: Scored, n: int) -> Scored:
    matching = lexical.rows[lexical.scores > 0]
    fused = reciprocal_rank_fusion([matching.tolist(), dense.rows.tolist()])[:n]
    return Scored(
        np.array([entry.item for entry in fused], dtype=np.int64), np.array([entry.score for entry in fused])
    )
