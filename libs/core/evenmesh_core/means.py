"""Means over queries whose value may be undefined."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from evenmesh_core.arrays import float_array


class DefinedMean(NamedTuple):
    """A mean over the defined values, and how many were and were not."""

    mean: float
    """Mean of the defined values; ``nan`` where none is defined."""
    defined: int
    """Number of values averaged."""
    undefined: int
    """Number of ``nan`` values left out."""


def defined_mean(values: ArrayLike) -> DefinedMean:
    """Average the defined values of a vector and count the undefined ones.

    Args:
        values: vector [Q] of finite numbers, ``nan`` where undefined.

    Raises:
        InvalidInput: no values, or an infinite one.
    """
    array = float_array("values", values, undefined=True)
    defined = array[~np.isnan(array)]
    mean = float(defined.mean()) if defined.size else float("nan")
    return DefinedMean(mean, int(defined.size), int(array.size - defined.size))
