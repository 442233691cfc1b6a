"""No reranking: passages keep the order they came in."""

from __future__ import annotations

from collections.abc import Sequence

from evenmesh_reranker.domain import Agent, Best, Passage, Scores


class Unranked:
    """Scores a passage by the reciprocal of its rank: 1, 1/2, 1/3, …"""

    async def score(
        self, query: str, passages: Sequence[Passage], agent: Agent, *, best: Best | None = None
    ) -> Scores:
        """Return reciprocal ranks."""
        return Scores(tuple(1.0 / rank for rank in range(1, len(passages) + 1)), "")
