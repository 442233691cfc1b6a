"""``rankrag``: the model that answers also judges which passages are relevant (Yu et al., RankRAG)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from services.reranker.domain import Agent, Passage, Scored

NAME: Final = "rankrag"


class RelevanceModel(Protocol):
    """A model that gives P(True) per passage, as the generator's ScoreRelevance does."""

    async def relevance(self, question: str, passages: Sequence[Passage]) -> Scored:
        """P(True) of each passage in [0, 1] (RankRAG, appendix D.1). Raises MeshError."""


class RankRag:
    """Relevance of each passage as the generator's model sees it; the same for every agent.

    Args:
        model: the judge.
    """

    def __init__(self, model: RelevanceModel) -> None:
        self._model = model

    @property
    def name(self) -> str:
        """See the port."""
        return NAME

    async def score(self, query: str, passages: Sequence[Passage], agent: Agent) -> Scored:
        """See the port."""
        return await self._model.relevance(query, passages)
