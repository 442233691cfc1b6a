"""What nothing beats: settings that no other is better than in every respect."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ragcore.arrays import float_array


def pareto_front(costs: ArrayLike) -> Sequence[int]:
    """Finds the rows that no other row beats: at most as large everywhere, and smaller somewhere.

    Args:
        costs: matrix [P, D], less is better; a row with ``nan`` is not on the front and beats none.

    Returns:
        Their places, rising; of equal rows all.

    Raises:
        InvalidInput: not such a matrix.
    """
    rows = float_array("costs", costs, ndim=2, undefined=True)
    known = [place for place in range(len(rows)) if not np.isnan(rows[place]).any()]
    return [
        place
        for place in known
        if not any(
            bool((rows[other] <= rows[place]).all() and (rows[other] < rows[place]).any()) for other in known
        )
    ]
