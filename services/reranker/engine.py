"""Scoring and ordering passages with the reranker that is asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from meshkit.errors import NotFound
from ragcore import ranking
from services.reranker.domain import Agent, Best, Passage, Ranking
from services.reranker.ports import Reranker


class Reranking:
    """The use case of the reranker service.

    Args:
        rerankers: every reranker by the name requests call it.
        default: the one of requests that name none.
    """

    def __init__(self, rerankers: Mapping[str, Reranker], default: str) -> None:
        if default not in rerankers:
            raise ValueError(f"the default {default!r} is none of {', '.join(rerankers)}")
        self._rerankers = dict(rerankers)
        self._default = default

    async def rerank(
        self,
        query: str,
        passages: Sequence[Passage],
        agent: Agent,
        *,
        top_k: int,
        reranker: str = "",
        tolerance: float | None = None,
    ) -> Ranking:
        """Scores of all passages and the best ``top_k``, [1, len(passages)]; ties by ascending id.

        With a ``tolerance``, [0, 1], passages may be left without a score once no other one can be better
        than any of the best by more than that.

        Raises:
            NotFound: no reranker of that name.
            MeshError: the reranker's own errors.
        """
        name = reranker or self._default
        try:
            chosen = self._rerankers[name]
        except KeyError:
            there_are = ", ".join(self._rerankers)
            raise NotFound("reranker", f"no reranker {name!r}; there are {there_are}") from None
        best = None if tolerance is None else Best(top_k, tolerance)
        scores = await chosen.score(query, passages, agent, best=best)
        count = len(passages)
        known = [place for place, value in enumerate(scores.values) if math.isfinite(value)]
        needed = count if best is None or scores.unscored_at_most is None else top_k
        if len(scores.values) != count or len(known) < needed:
            # The model's fault, not the caller's: an internal error.
            raise RuntimeError(f"{name} gave {len(scores.values)} scores for {count} passages, or no numbers")
        ids = [passages[place].id for place in known]
        order = ranking.top_k([scores.values[place] for place in known], ids, top_k)
        return Ranking(
            scores.values,
            tuple(known[at] for at in order.tolist()),
            scores.model_version,
            name,
            scores.unscored_at_most,
        )
