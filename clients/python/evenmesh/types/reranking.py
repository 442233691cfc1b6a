"""Reranking alone: scores of the first stage, and the result."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FirstStage:
    """Scores that a first stage gave the passages that are reranked.

    Attributes:
        scores: one for each passage, in its unit: higher is better.
        mean: of the scores of the pool that the passages are from; that of ``scores`` without it.
        deviation: standard deviation of that pool's scores; that of ``scores`` without it.
    """

    scores: Sequence[float]
    mean: float | None = None
    deviation: float | None = None


@dataclass(frozen=True, slots=True)
class Reranking:
    """Passages with new scores, and their order.

    Attributes:
        scores: probability that each passage, in the order of the request, is useful; NaN where it has none.
        order: places of the best passages in the request, best first.
        reranker: the reranker that answered.
        model_version: version of its model.
        unscored: places of the passages without a score; empty unless a tolerance was given.
        unscored_at_most: largest probability that one of these could have; None if all are scored.
        fusion: weight of the first stage in the scores; 0 if they are the reranker's alone.
    """

    scores: tuple[float, ...]
    order: tuple[int, ...]
    reranker: str
    model_version: str
    unscored: tuple[int, ...]
    unscored_at_most: float | None
    fusion: float
