"""Score and order passages with the reranker that a request names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from evenmesh.wire.errors import NotFound
from evenmesh_core import ranking
from evenmesh_core.neighbors import text_vectors
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_reranker.domain import Agent, Best, FirstStage, Fusion, Passage, Ranking
from evenmesh_reranker.models.fusions import fuse
from evenmesh_reranker.ports import Reranker

_MOST_DEVIATIONS: Final = 100.0


class Reranking:
    """The use case of the reranker service.

    Args:
        rerankers: all rerankers by name.
        default: name of the reranker of requests that name none.
        pool: computes which passages are similar.
    """

    def __init__(self, rerankers: Mapping[str, Reranker], default: str, pool: ComputePool) -> None:
        if default not in rerankers:
            raise ValueError(f"the default {default!r} is not one of {', '.join(rerankers)}")
        self._rerankers = dict(rerankers)
        self._default = default
        self._pool = pool

    async def rerank(
        self,
        query: str,
        passages: Sequence[Passage],
        agent: Agent,
        *,
        top_k: int,
        reranker: str = "",
        tolerance: float | None = None,
        first: FirstStage | None = None,
        fusion: float | None = None,
    ) -> Ranking:
        """Return scores of all passages and the best ``top_k``, [1, len(passages)]; ties by ascending id.

        With a ``tolerance``, [0, 1], passages may stay without a score once none of them can be better than
        any of the best by more than that.

        With ``first`` the scores are fused with those of the first stage, by ``fusion``, [0, 10], or by the
        weight that the model asks for, and with the support of similar passages, if the model asks for it.
        They are not with a ``tolerance``, whose bound is one of the reranker's own.

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
        values, weight = scores.values, 0.0
        if first is not None and tolerance is None and scores.fusion is not None:
            weight = scores.fusion.weight if fusion is None else fusion
            if weight > 0:
                how = replace(scores.fusion, weight=weight)
                values = await self._fused(scores.values, first, passages, how)
        ids = [passages[place].id for place in known]
        order = ranking.top_k([values[place] for place in known], ids, top_k)
        return Ranking(
            values,
            tuple(known[at] for at in order.tolist()),
            scores.model_version,
            name,
            scores.unscored_at_most,
            weight,
        )

    async def _fused(
        self, values: Sequence[float], first: FirstStage, passages: Sequence[Passage], fusion: Fusion
    ) -> tuple[float, ...]:
        if fusion.neighbors == 0:
            return _fused(values, first, fusion)
        texts = [f"{one.title} {one.text}" for one in passages]
        return await self._pool.run(_fused, values, first, fusion, texts)


def _fused(
    values: Sequence[float], first: FirstStage, fusion: Fusion, texts: Sequence[str] | None = None
) -> tuple[float, ...]:
    scores = np.array(first.scores, dtype=np.float64)
    standardized = (scores - first.mean) / first.deviation if first.deviation > 0 else scores * 0.0
    # Beyond this the order of probabilities would be lost to rounding.
    bounded = np.clip(standardized, -_MOST_DEVIATIONS, _MOST_DEVIATIONS)
    vectors = None if texts is None else text_vectors(texts)
    return tuple(fuse(np.array(values), bounded, fusion, vectors).tolist())
