"""What there is to gain: the shown passages' utility by each fusion, chosen afterwards, and by an oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.online_study.queries import Asked
from benchmarks.online_study.replaying import SHOWN
from evenmesh_reranker.domain import Fusion
from evenmesh_training.ium.fusing import CHOICES, Scored
from evenmesh_training.ium.result_cache import Candidates


def row(agent: str, asked: Sequence[Asked], ships: Fusion) -> dict[str, Any]:
    """Return an agent's row: mean utility of the first stage, the model alone, what ships, and the best.

    Args:
        agent: its name.
        asked: its queries.
        ships: the fusion that ships.
    """
    scored = [
        Scored.of(
            Candidates(one.query.passages, one.query.scores or ()),
            dict(zip((passage.id for passage in one.query.passages), one.scores, strict=True)),
        )
        for one in asked
    ]
    useful = [np.array(one.query.usefulness) for one in asked]

    def utility(orders: Sequence[Sequence[int]]) -> float:
        return float(
            np.mean([one[list(order[:SHOWN])].mean() for one, order in zip(useful, orders, strict=True)])
        )

    by_fusion = {one: utility([of.order(one) for of in scored]) for one in (*CHOICES, ships)}
    best = max(by_fusion, key=lambda one: by_fusion[one])
    return {
        "agent": agent,
        "queries": len(asked),
        "first stage": utility([range(len(one)) for one in useful]),
        "model": by_fusion[Fusion(0.0)],
        "frozen": by_fusion[ships],
        "best fusion": by_fusion[best],
        "weight": best.weight,
        "neighbors": best.neighbors,
        "oracle": utility([np.argsort(-one, kind="stable").tolist() for one in useful]),
    }
