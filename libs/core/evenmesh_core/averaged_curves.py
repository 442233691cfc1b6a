"""Curves of averages: y over x where many queries give a point at each dial.

The points of all queries scatter; the curve is that of their averages in groups, one group a dial. Its area
is taken between the first and the last average, so no single point decides it and nothing beyond the data.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from evenmesh_core.arrays import FloatArray, IntArray, same_length

MAX_GROUPS = 10
"""Most groups of points that come without dials."""
SAME_X = 1e-9
"""Difference up to which two x, of values in [0, 1], are the same."""


class Grouped(NamedTuple):
    """Averages of groups; matrices [B, G], or vectors [G], with ``nan`` for a group without points."""

    x: FloatArray
    y: FloatArray


def group_points(x: FloatArray, dials: Sequence[Hashable] | None = None) -> IntArray:
    """Return the group of each point, from 0.

    Args:
        x: vector [P].
        dials: dial of each point; points at one dial are a group. Without dials each x is a
            group, where there are at most 10 different ones; with more, the points are cut by rising x into
            10 groups of about the same size, and equal x stay together.

    Raises:
        InvalidInput: not a dial for each point.
    """
    if dials is not None:
        same_length("x", x, "dials", dials)
        names: dict[Hashable, int] = {}
        return np.array([names.setdefault(dial, len(names)) for dial in dials], dtype=np.int64)
    values, place = np.unique(x, return_inverse=True)
    if len(values) <= MAX_GROUPS:
        return place.astype(np.int64)
    # An x belongs where the middle of its points lies among all of them.
    sizes = np.bincount(place)
    middles = np.cumsum(sizes) - sizes / 2
    groups = np.floor(MAX_GROUPS * middles / len(x)).astype(np.int64)
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)[place]


def averages(x: FloatArray, y: FloatArray, groups: IntArray) -> Grouped:
    """Return the average x and y of each group of points, vectors [G]."""
    sizes = np.bincount(groups)
    return Grouped(np.bincount(groups, weights=x) / sizes, np.bincount(groups, weights=y) / sizes)


def covered(curves: Grouped) -> tuple[FloatArray, FloatArray]:
    """Return the smallest and the largest average x of each curve, ``nan`` without groups."""
    empty = np.isnan(curves.x).all(axis=-1)
    low = np.where(np.isnan(curves.x), np.inf, curves.x).min(axis=-1)
    high = np.where(np.isnan(curves.x), -np.inf, curves.x).max(axis=-1)
    return np.where(empty, np.nan, low), np.where(empty, np.nan, high)


def mean_height(curves: Grouped, low: FloatArray | float, high: FloatArray | float) -> FloatArray:
    """Return the area under each curve from ``low`` to ``high``, divided by that range.

    A curve runs straight between neighbouring averages, and is constant before the first and after the last.

    Returns:
        Vector [B], or one number for one curve; ``nan`` where the range is at most 1e-9 wide, or there are no
        groups.
    """
    order = np.argsort(curves.x, axis=-1, kind="stable")  # nan comes last
    x, y = np.take_along_axis(curves.x, order, -1), np.take_along_axis(curves.y, order, -1)
    low, high = np.asarray(low, dtype=np.float64)[..., None], np.asarray(high, dtype=np.float64)[..., None]
    left, right = x[..., :-1], x[..., 1:]
    from_x, to_x = np.clip(left, low, high), np.clip(right, low, high)
    wide = right > left  # and so neither is nan
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = ((from_x + to_x) / 2 - left) / (right - left)
        heights = y[..., :-1] + (y[..., 1:] - y[..., :-1]) * middle
        area = np.where(wide, (to_x - from_x) * heights, 0.0).sum(axis=-1)
    last = np.maximum(np.sum(~np.isnan(x), axis=-1, keepdims=True) - 1, 0)
    end_x, end_y = np.take_along_axis(x, last, -1), np.take_along_axis(y, last, -1)
    area = area + (np.maximum(np.minimum(x[..., :1], high) - low, 0.0) * y[..., :1])[..., 0]
    area = area + (np.maximum(high - np.maximum(end_x, low), 0.0) * end_y)[..., 0]
    width = (high - low)[..., 0]
    found: FloatArray = np.where(width > SAME_X, area / np.where(width > SAME_X, width, 1.0), np.nan)
    return found
