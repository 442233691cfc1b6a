"""Score and order passages with the reranker that a request names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from evenmesh.wire.errors import NotFound
from evenmesh_core import ranking
from evenmesh_reranker.domain import Agent, Best, Passage, Ranking
from evenmesh_reranker.ports import Reranker


class Reranking:
    """The use case of the reranker service.

    Args:
        rerankers: all rerankers by name.
        default: name of the reranker of requests that name none.
    """

    def __init__(self, rerankers: Mapping[str, Reranker], default: str) -> None:
        if default not in rerankers:
            raise ValueError(f"the default {default!r} is not one of {', '.join(rerankers)}")
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
        """Return scores of all passages and the best ``top_k``, [1, len(passages)]; ties by ascending id.

        With a ``tolerance``, [0, 1], passages may stay without a score once none of them can be better than
        any of the best by more than that.

        Raises:
            NotFound: there is no reranker of that name.
            MeshError: as the reranker does.
        """
        name = reranker or self._default
        try:
            chosen = self._rerankers[name]
        except KeyError:
            names = ", ".join(self._rerankers)
            raise NotFound("reranker", f"no reranker {name!r}; there are {names}") from None
        best = None if tolerance is None else Best(top_k, tolerance)
        scores = await chosen.score(query, passages, agent, best=best)
        count = len(passages)
        known = [place for place, value in enumerate(scores.values) if math.isfinite(value)]
        needed = count if best is None or scores.unscored_at_most is None else top_k
        if len(scores.values) != count or len(known) < needed:
            # The fault of the model, not of the caller: an internal error.
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
