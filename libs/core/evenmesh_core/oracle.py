"""The oracle retriever of an audit: useful items first, and within each kind in random order."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from evenmesh_core.arrays import IntArray, count, float_array
from evenmesh_core.seeds import Seed, generator


def oracle_rankings(useful_mask: ArrayLike, *, num_rankings: int, k: int, rng: Seed) -> IntArray:
    """Draw rankings that put every useful item above every other, each such ranking equally likely.

    With m useful items of n there are m!(n − m)! of them. Their outputs count towards the largest utility
    that normalises expected utility (:func:`evenmesh_core.utility.maximum_utility`). The first rankings do
    not depend on how many follow.

    Args:
        useful_mask: vector [n] of booleans, or of numbers that are above 0 where an item is useful.
        num_rankings: number N of rankings, from 1.
        k: length of the rankings, from 1; more than n gives n.
        rng: a NumPy generator, which advances by N·n uniforms, or a seed for a new one.

    Returns:
        Int matrix [N, min(k, n)] of item indices, best first.

    Source: Kim & Diaz 2025, §3.3.3, appendix C.3 (σ* of equation 25).

    Raises:
        InvalidInput: not a non-empty vector, num_rankings or k below 1, or no seed.
    """
    useful = float_array("useful_mask", useful_mask) > 0
    rows = count("num_rankings", num_rankings)
    depth = min(count("k", k), len(useful))
    # Uniform keys order uniformly; a useful item's are below 0, and so before all others.
    keys = generator(rng).random((rows, len(useful))) - useful
    rankings: IntArray = np.argsort(keys, axis=1, kind="stable")[:, :depth].astype(np.int64)
    return rankings
