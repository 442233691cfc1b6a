"""Plackett–Luce draws against full-noise Gumbel with argpartition, the way they are usually drawn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy as np

from ragcore import plackett_luce
from ragcore.arrays import FloatArray, IntArray

RANKINGS, DEPTH, ALPHA = 100, 5, 2.0
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
_CHUNK_CELLS = 5_000_000  # of noise at a time, so that the peer fits in memory too


@dataclass(frozen=True)
class Draws:
    """One collection size: milliseconds for ``RANKINGS`` rankings of ``DEPTH``, and the peer over ours."""

    items: int
    gumbel_ms: float
    numpy_ms: float
    numba_ms: float

    @property
    def ratio(self) -> float:
        """How many times as long the peer takes as ours without a compiler."""
        return self.gumbel_ms / self.numpy_ms


def measure(*, rounds: int = 3) -> list[Draws]:
    """Times the engines in turn, on scores in descending order as a retriever gives them."""
    return [_measured(items, rounds) for items in SIZES]


def _measured(items: int, rounds: int) -> Draws:
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
    times = [[_ms(peer), _ms(ours("numpy")), _ms(ours("numba"))] for _ in range(rounds)]
    gumbel, plain, compiled = (median(column) for column in zip(*times, strict=True))
    return Draws(items, gumbel, plain, compiled)


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


def _ms(run: Callable[[], object]) -> float:
    """Best of as many runs as fit in a fifth of a second: the machine is shared."""
    best, ends = float("inf"), time.perf_counter() + 0.2
    while True:
        began = time.perf_counter()
        run()
        now = time.perf_counter()
        best = min(best, 1e3 * (now - began))
        if now > ends:
            return best
