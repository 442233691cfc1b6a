"""Resamples of times that came one after the other: neighbours waited for the same.

They are drawn together: blocks keep what calls in a row have in common.
"""

import math
from typing import Final

import numpy as np

from ragcore.arrays import FloatArray

RESAMPLES: Final = 500


def block_resamples(values: FloatArray, rng: np.random.Generator, count: int = RESAMPLES) -> FloatArray:
    """Draws resamples of blocks in a row (moving blocks of √n, from everywhere, round the end).

    Args:
        values: vector [n] in the order they were measured, n from 1.
        rng: draws.
        count: resamples.

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
