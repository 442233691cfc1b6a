"""Bootstrap resampling of successive times, in blocks, because neighbouring calls are correlated."""

import math
from typing import Final

import numpy as np

from evenmesh_core.arrays import FloatArray

RESAMPLES: Final = 500


def block_resamples(values: FloatArray, rng: np.random.Generator, count: int = RESAMPLES) -> FloatArray:
    """Draw resamples of circular moving blocks of length √n.

    Args:
        values: vector [n] in the order of measurement, n from 1.
        rng: draws.
        count: number of resamples.

    Returns:
        Matrix [count, n].

    Source: Künsch 1989; Politis & Romano 1992 (circular blocks).
    """
    n = len(values)
    length = max(1, round(math.sqrt(n)))
    blocks = -(-n // length)
    starts = rng.integers(0, n, size=(count, blocks))
    places = (starts[:, :, None] + np.arange(length)) % n
    drawn: FloatArray = values[places.reshape(count, -1)[:, :n]]
    return drawn
