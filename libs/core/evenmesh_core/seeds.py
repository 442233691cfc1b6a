"""Random generators of functions."""

from __future__ import annotations

import numpy as np

from evenmesh_core.arrays import count
from evenmesh_core.errors import InvalidInput

Seed = int | np.random.SeedSequence | np.random.Generator
"""A NumPy generator, which advances, or a seed for a new one: the same seed, the same result."""


def generator(rng: Seed) -> np.random.Generator:
    """Return the generator, or make one from the seed.

    Raises:
        InvalidInput: it is neither a generator nor a seed.
    """
    if isinstance(rng, (np.random.Generator, np.random.SeedSequence)):
        return np.random.default_rng(rng)
    try:
        return np.random.default_rng(count("rng", rng, low=0))
    except InvalidInput as error:
        raise InvalidInput("rng", rng, "a NumPy generator, or a seed: a whole number from 0") from error
