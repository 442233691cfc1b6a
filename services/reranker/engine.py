"""What the reranker does: chooses a backend, lets it score, orders."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshkit.errors import NotFound
from ragcore.ranking import top_k
from services.reranker.domain import Agent, Passage, Reranked
from services.reranker.ports import Reranker


class Engine:
    """The use case of the reranker service.

    Args:
        rerankers: every backend, the default first; names differ.
    """

    def __init__(self, rerankers: Sequence[Reranker]) -> None:
        self._rerankers = {reranker.name: reranker for reranker in rerankers}
        if len(self._rerankers) < len(rerankers) or not rerankers:
            raise ValueError("the reranker needs at least one backend, and backends of different names")
        self._default = rerankers[0].name

    async def rerank(
        self, query: str, passages: Sequence[Passage], agent: Agent, *, reranker: str, keep: int
    ) -> Reranked:
        """Scores every passage and orders the best ``keep`` of them.

        Raises:
            NotFound: no reranker of that name.
            MeshError: the backend's own errors.
        """
        name = reranker or self._default
        if name not in self._rerankers:
            known = ", ".join(self._rerankers)
            raise NotFound("reranker", f"no reranker {name!r}; there are {known}")
        scored = await self._rerankers[name].score(query, passages, agent)
        scores = np.asarray(scored.scores, dtype=np.float64)
        order = top_k(scores, [passage.id for passage in passages], keep)
        return Reranked(scored, order.tolist(), name)
