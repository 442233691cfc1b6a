"""What the engine needs of a way to score passages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from services.reranker.domain import Agent, Passage, Scored


class Reranker(Protocol):
    """Scores passages for a query. Used from one event loop, by many callers at once."""

    @property
    def name(self) -> str:
        """What requests call it."""

    async def score(self, query: str, passages: Sequence[Passage], agent: Agent) -> Scored:
        """One score in [0, 1] per passage, higher is better, whatever else is scored at the time.

        Args:
            query: the query, not empty.
            passages: 1 to 1,000, ids unique.
            agent: on whose behalf; a reranker that does not personalise takes it as unknown.

        Raises:
            FailedPrecondition: the reranker is not set up; the message names the setting.
            MeshError: its model is away, or refuses.
        """
