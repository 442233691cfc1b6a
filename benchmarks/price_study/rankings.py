"""What each dial shows for a question: contexts with shared noise, and exact exposure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.price_study.sets import SEED
from benchmarks.rerank_table.scoring import FOUND, Scores, standardized
from evenmesh_core.arrays import FloatArray
from evenmesh_core.exposure import exposure_metrics
from evenmesh_core.plackett_luce.inclusion import inclusion_probabilities
from evenmesh_core.plackett_luce.policy import log_weights

K: Final = 5
SAMPLES: Final = 10
ALPHAS: Final = (0.0, 1.0, 2.0, 2.5, 3.0, 3.5, 4.0, 8.0)
FIXED: Final = "deterministic"
ORACLE: Final = "oracle"
STAGES: Final = ("bm25", "dense", "hybrid")

Context = tuple[str, ...]
"""Ids of the passages of a context, sorted: readers take a context as a set."""


@dataclass(frozen=True)
class Shown:
    """What a first stage shows for a question at a dial.

    Attributes:
        stage: one of :data:`STAGES`.
        dial: α, :data:`FIXED` or :data:`ORACLE`.
        disparity: normalised EE-D, [0, 1]; ``nan`` for the oracle.
        relevance: normalised EE-R, [0, 1]; ``nan`` for the oracle, and where no item is useful.
        contexts: one for each ranking drawn; of the deterministic ranking one.
    """

    stage: str
    dial: str
    disparity: float
    relevance: float
    contexts: tuple[Context, ...]


def pools(found: Scores) -> dict[str, dict[str, float]]:
    """Return the scores of the items of each first stage, best first."""
    return {
        stage: dict(sorted(given.items(), key=lambda one: (-one[1], one[0]))[:FOUND])
        for stage, given in zip(
            STAGES, (found.bm25, found.dense, standardized(found.bm25, found.dense)), strict=True
        )
    }


def shown(query: str, stage: str, pool: Mapping[str, float], useful: Set[str]) -> list[Shown]:
    """Return what each dial shows of a pool, the deterministic ranking first; nothing of an empty pool.

    Args:
        query: id of the question: noise depends on it and on the passage alone.
        stage: first stage.
        pool: scores by item, best first.
        useful: ids of useful passages.
    """
    if not pool:
        return []
    items, scores = list(pool), np.array(list(pool.values()))
    mask = np.array([one in useful for one in items])
    drawn = noise(query, items)
    first = np.arange(len(items)) < K
    found = [_shown(stage, FIXED, first.astype(np.float64), mask, [items[:K]])]
    for alpha in ALPHAS:
        weights = log_weights(scores, alpha)
        exposure = inclusion_probabilities(weights, k=min(K, len(items)))
        found.append(_shown(stage, f"{alpha:g}", exposure, mask, best(items, weights + drawn)))
    return found


def oracle(query: str, stage: str, pool: Mapping[str, float], useful: Set[str]) -> Shown:
    """Return contexts of the useful items of a pool in an even order, the others after them."""
    items = list(pool)
    ahead = np.array([one in useful for one in items]) * 1e6
    return Shown(stage, ORACLE, np.nan, np.nan, best(items, ahead + noise(query, items)))


def noise(query: str, items: Sequence[str]) -> FloatArray:
    """Return Gumbel noise [samples, items], the same for a passage whatever else there is."""
    found = [np.random.default_rng(_seed(query, one)).gumbel(size=SAMPLES) for one in items]
    return np.array(found).T


def best(items: Sequence[str], keys: FloatArray) -> tuple[Context, ...]:
    """Return the :data:`K` items of the largest keys, for each row of keys [samples, items]."""
    places = np.argsort(-keys, axis=1, kind="stable")[:, :K]
    return tuple(tuple(sorted(items[place] for place in row)) for row in places.tolist())


def _shown(
    stage: str,
    dial: str,
    exposure: FloatArray,
    mask: np.ndarray[tuple[int], np.dtype[np.bool_]],
    contexts: Sequence[Sequence[str]],
) -> Shown:
    found = exposure_metrics(exposure=exposure, useful_mask=mask, k=K)
    kept = tuple(tuple(sorted(one)) for one in contexts)
    return Shown(stage, dial, found.ee_d_norm, found.ee_r_norm, kept)


def _seed(query: str, item: str) -> int:
    digest = hashlib.sha256(f"{SEED}\0{query}\0{item}".encode()).digest()
    return int.from_bytes(digest[:8], "big")
