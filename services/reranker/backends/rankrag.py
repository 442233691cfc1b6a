"""RankRAG: the generator's own model judges passages (Yu et al., section 4.3 and appendix D.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from services.reranker.domain import Agent, Best, Passage, Scores


class RelevanceJudge(Protocol):
    """Says how likely passages are relevant."""

    async def score_relevance(
        self, query: str, passages: Sequence[Passage], best: Best | None = None
    ) -> Scores:
        """P(True) per passage under RankRAG's context-ranking prompt.

        Where only the ``best`` are wanted, passages are judged in their order until those are known.

        Raises:
            MeshError: as the judge says.
        """
        ...


class RankRag:
    """Scores a passage by P(True) of the generator's model. The agent has no say in it."""

    def __init__(self, judge: RelevanceJudge) -> None:
        self._judge = judge

    async def score(
        self, query: str, passages: Sequence[Passage], agent: Agent, *, best: Best | None = None
    ) -> Scores:
        """P(True) of each passage, or of as many as are needed to know the best."""
        return await self._judge.score_relevance(query, passages, best)
