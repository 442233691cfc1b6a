"""Where the randomness of a function comes from."""

from __future__ import annotations

import numpy as np

from ragcore.arrays import count
from ragcore.errors import InvalidInput

Seed = int | np.random.SeedSequence | np.random.Generator
"""A NumPy generator, which advances, or a seed for a new one: the same seed, the same result."""


def generator(rng: Seed) -> np.random.Generator:
    """Give the generator, or make one from the seed.

    Raises:
        InvalidInput: neither.
    """
    if isinstance(rng, (np.random.Generator, np.random.SeedSequence)):
        return np.random.default_rng(rng)
    try:
        return np.random.default_rng(count("rng", rng, low=0))
    except InvalidInput as error:
        raise InvalidInput("rng", rng, "a NumPy generator, or a seed: a whole number from 0") from error
