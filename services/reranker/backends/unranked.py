"""``none``: the order that came in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from services.reranker.domain import Agent, Passage, Scored

NAME: Final = "none"


class Unranked:
    """Keeps the order: a passage's score is the reciprocal of its rank."""

    @property
    def name(self) -> str:
        """See the port."""
        return NAME

    async def score(self, query: str, passages: Sequence[Passage], agent: Agent) -> Scored:
        """See the port."""
        return Scored([1 / rank for rank in range(1, len(passages) + 1)], "")
