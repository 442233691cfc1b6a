"""The mean over groups of questions, such as data sets or agents, each of which counts alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from evenmesh_core.arrays import FloatArray

SEED: Final = 0
RESAMPLES: Final = 10_000


def mean_of_means(groups: Sequence[FloatArray], *, resamples: int = RESAMPLES) -> tuple[float, float, float]:
    """Return the mean of the means of groups, and its 95 % percentile interval.

    Values are drawn again within each group.
    """
    rng = np.random.default_rng(SEED)
    drawn = [one[rng.integers(0, len(one), (resamples, len(one)))].mean(axis=1) for one in groups]
    low, high = np.percentile(np.mean(drawn, axis=0), [2.5, 97.5])
    return float(np.mean([one.mean() for one in groups])), float(low), float(high)
