"""Plackett–Luce draws against full-noise Gumbel with argpartition, the way they are usually drawn."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Literal

import numpy as np

from evenmesh_core import plackett_luce
from evenmesh_core.arrays import FloatArray, IntArray

RANKINGS, DEPTH, ALPHA = 100, 5, 2.0
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
_CHUNK_CELLS = 5_000_000  # of noise at a time, so that the peer fits in memory too


def measure(*, rounds: int = 3) -> list[dict[str, str]]:
    """Time the engines in turn, on scores in descending order as a retriever gives them; a row for a size."""
    return [_measured(items, rounds) for items in SIZES]


def _measured(items: int, rounds: int) -> dict[str, str]:
    rng = np.random.default_rng(items)
    weights = plackett_luce.log_weights(np.sort(rng.normal(size=items))[::-1], ALPHA)

    def ours(engine: Literal["numpy", "numba"]) -> Callable[[], object]:
        return lambda: plackett_luce.sample_rankings(
            weights,
            num_rankings=RANKINGS,
            k=DEPTH,
            rng=0,
            engine=engine,
        )

    def peer() -> IntArray:
        return _gumbel(weights, np.random.default_rng(0))

    ours("numba")()  # compiles
    times = [
        [milliseconds(peer), milliseconds(ours("numpy")), milliseconds(ours("numba"))] for _ in range(rounds)
    ]
    gumbel, plain, compiled = (median(column) for column in zip(*times, strict=True))
    return {
        "items": f"{items:,}",
        "Gumbel + argpartition": f"{gumbel:.2f}",
        "evenmesh_core, NumPy": f"{plain:.2f}",
        "evenmesh_core, numba": f"{compiled:.3f}",
        "peer / NumPy": f"{gumbel / plain:.0f} ×",
    }


def _gumbel(weights: FloatArray, rng: np.random.Generator) -> IntArray:
    """Noise for every item of every ranking, the best k by argpartition."""
    rows = max(1, _CHUNK_CELLS // len(weights))
    parts = []
    for start in range(0, RANKINGS, rows):
        noisy = weights + rng.gumbel(size=(min(rows, RANKINGS - start), len(weights)))
        best = np.argpartition(-noisy, DEPTH - 1, axis=1)[:, :DEPTH]
        order = np.argsort(-np.take_along_axis(noisy, best, axis=1), axis=1)
        parts.append(np.take_along_axis(best, order, axis=1))
    return np.concatenate(parts)


def milliseconds(run: Callable[[], object]) -> float:
    """Best of as many runs as fit in a fifth of a second: the machine is shared."""
    best, ends = float("inf"), time.perf_counter() + 0.2
    while True:
        began = time.perf_counter()
        run()
        now = time.perf_counter()
        best = min(best, 1e3 * (now - began))
        if now > ends:
            return best
