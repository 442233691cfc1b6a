"""What the engine needs of whatever scores passages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from services.reranker.domain import Agent, LearnedModel, Passage, Scores


class Reranker(Protocol):
    """Scores passages for a query. Used from one event loop, by many callers at once."""

    async def score(self, query: str, passages: Sequence[Passage], agent: Agent) -> Scores:
        """One score per passage, in order; it depends on the query, the passage and the agent alone.

        An agent the model was not trained for is scored for as an unknown one.

        Raises:
            FailedPrecondition: it is not configured.
            Unavailable: what it needs is away.
            MeshError: the query does not fit the model, or there is no time left.
        """
        ...

    def models(self) -> list[LearnedModel]:
        """Learned models it holds, the served one first."""
        ...
