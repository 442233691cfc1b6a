"""Find the Pareto front of settings."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from evenmesh_core.arrays import float_array


def pareto_front(costs: ArrayLike) -> Sequence[int]:
    """Return the rows that no other row dominates: at most as large everywhere, and smaller somewhere.

    Args:
        costs: matrix [P, D], less is better; a row with ``nan`` is not on the front and dominates none.

    Returns:
        Their places, ascending, with all of equal rows.

    Raises:
        InvalidInput: ``costs`` is not such a matrix.
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
