"""Array types, and the checks of array arguments."""

from __future__ import annotations

import operator
from collections.abc import Sized
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenmesh_core.errors import InvalidInput

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def _numeric(name: str, values: object, kinds: str, allowed: str) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:  # ragged nesting, or objects NumPy cannot read
        raise InvalidInput(name, values, allowed) from error
    if array.size == 0:
        raise InvalidInput(name, values, "at least one element")
    if array.dtype.kind not in kinds:
        raise InvalidInput(name, values, allowed)
    return array


def _shape_in_words(ndim: int) -> str:
    return {0: "one number", 1: "a vector", 2: "a matrix"}.get(ndim, f"an array of {ndim} dimensions")


def float_array(
    name: str,
    values: ArrayLike,
    *,
    ndim: int = 1,
    low: float = -np.inf,
    high: float = np.inf,
    undefined: bool = False,
) -> FloatArray:
    """Read ``values`` as float64 with ``ndim`` dimensions and every element finite and in [low, high].

    Args:
        name: the argument's name, for the error.
        values: anything NumPy reads as real numbers (booleans count as 0 and 1).
        ndim: the number of dimensions wanted.
        low: smallest value allowed.
        high: largest value allowed.
        undefined: whether ``nan`` is allowed, meaning "undefined".

    Raises:
        InvalidInput: wrong type or shape, no elements, or an element outside the range.
    """
    allowed = f"{_shape_in_words(ndim)} of numbers" if ndim else "one number"
    array = _numeric(name, values, "biuf", allowed).astype(np.float64, copy=False)
    if array.ndim != ndim:
        raise InvalidInput(f"{name}.shape", array.shape, allowed)
    good = np.isfinite(array)
    if low > -np.inf:
        good &= array >= low
    if high < np.inf:
        good &= array <= high
    if undefined:
        good |= np.isnan(array)
    if not good.all():
        where = tuple(int(i) for i in np.argwhere(~good)[0])
        element = f"{name}[{', '.join(map(str, where))}]" if where else name
        raise InvalidInput(element, float(array[where]), _range_in_words(low, high, undefined))
    return array


def number(name: str, value: float, *, low: float = -np.inf, high: float = np.inf) -> float:
    """Read one finite number in [low, high].

    Raises:
        InvalidInput: not a number, not finite, or outside the range.
    """
    if type(value) is float and low <= value <= high and -np.inf < value < np.inf:
        return value  # arrays would take longer than most uses of the number
    return float(float_array(name, value, ndim=0, low=low, high=high))


def confidence(level: float) -> float:
    """Read a confidence level, above 0 and below 1.

    Raises:
        InvalidInput: no number, or out of range.
    """
    share = number("level", level)
    if not 0.0 < share < 1.0:
        raise InvalidInput("level", level, "numbers between 0 and 1, neither of them included")
    return share


def count(name: str, value: int, *, low: int = 1, high: int | None = None) -> int:
    """Read one whole number in [low, high].

    Raises:
        InvalidInput: not a whole number (booleans and floats are refused), or outside the range.
    """
    allowed = f"whole numbers from {low}" + ("" if high is None else f" to {high}")
    if isinstance(value, (bool, np.bool_)):
        raise InvalidInput(name, value, allowed)
    try:
        whole = operator.index(value)
    except TypeError as error:
        raise InvalidInput(name, value, allowed) from error
    if whole < low or (high is not None and whole > high):
        raise InvalidInput(name, value, allowed)
    return whole


def indicators(name: str, values: ArrayLike, *, ndim: int = 1) -> BoolArray:
    """Read a vector or matrix of 0 and 1, or of booleans.

    Raises:
        InvalidInput: wrong shape, no elements, or another number.
    """
    array = float_array(name, values, ndim=ndim, low=0.0, high=1.0)
    if np.any((array != 0.0) & (array != 1.0)):
        raise InvalidInput(name, values, f"{_shape_in_words(ndim)} of 0 and 1")
    found: BoolArray = array == 1.0
    return found


def rankings_array(name: str, values: ArrayLike, n_items: int) -> IntArray:
    """Read rankings: an int matrix [N, L] of item indices, best first, no item twice in a row of it.

    Raises:
        InvalidInput: not integers, not a matrix, an index outside [0, n_items), or an item ranked twice.
    """
    allowed = "a matrix [rankings, length] of whole numbers"
    array = _numeric(name, values, "iu", allowed)
    if array.ndim != 2:
        raise InvalidInput(f"{name}.shape", array.shape, allowed)
    outside = (array < 0) | (array >= n_items)
    if outside.any():
        row, column = (int(i) for i in np.argwhere(outside)[0])
        index = int(array[row, column])
        raise InvalidInput(f"{name}[{row}, {column}]", index, f"item indices 0 to {n_items - 1}")
    ordered = np.sort(array, axis=1)
    repeated = ordered[:, 1:] == ordered[:, :-1]
    if repeated.any():
        row, column = (int(i) for i in np.argwhere(repeated)[0])
        twice = int(ordered[row, column])
        raise InvalidInput(f"{name}[{row}]", array[row].tolist(), f"each item once, but {twice} repeats")
    return array.astype(np.int64, copy=False)


def same_length(first: str, first_values: Sized, second: str, second_values: Sized) -> None:
    """Check that two arguments describe the same things one by one.

    Raises:
        InvalidInput: their lengths differ; the error names the second.
    """
    wanted, length = len(first_values), len(second_values)
    if length != wanted:
        raise InvalidInput(f"len({second})", length, f"{wanted}, the length of {first}")


def _range_in_words(low: float, high: float, undefined: bool) -> str:
    kind = "finite numbers"
    if np.isinf(low) and np.isinf(high):
        words = kind
    elif np.isinf(high):
        words = f"{kind} >= {low:g}"
    elif np.isinf(low):
        words = f"{kind} <= {high:g}"
    else:
        words = f"{kind} from {low:g} to {high:g}"
    return f"{words}, or nan for undefined" if undefined else words
