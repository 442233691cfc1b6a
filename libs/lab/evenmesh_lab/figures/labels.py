"""Place names next to points so that they cover neither points nor each other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from evenmesh_lab.figures.style import SECOND

_NO_LINE: Final = ("None", "none", "")
_STEPS: Final = (5.0, 9.0, 14.0)  # points between a point and its name
_DIRECTIONS: Final = (
    (0, 1, "center", "bottom"),
    (0, -1, "center", "top"),
    (1, -0.7, "left", "top"),
    (-1, 0.7, "right", "bottom"),
    (1, 0.7, "left", "bottom"),
    (-1, -0.7, "right", "top"),
    (1, 0, "left", "center"),
    (-1, 0, "right", "center"),
)


def name_points(made: Figure, axes: Axes, names: Sequence[tuple[float, float, str]]) -> None:
    """Name points where there is room within the axes; drop a name without room.

    Lines that are drawn count as covered ground, so call it last.

    Args:
        made: the figure.
        axes: its axes.
        names: x, y and the name of each point, the most important first.
    """
    made.draw_without_rendering()
    scale = made.dpi / 72
    inside = axes.get_window_extent()
    ground = _ground(axes)
    taken: list[Bbox] = []
    for x, y, name in names:
        for step in _STEPS:
            if _placed(axes, inside, ground, taken, (x, y, name), step, scale):
                break


def _placed(
    axes: Axes,
    inside: Bbox,
    ground: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    taken: list[Bbox],
    point: tuple[float, float, str],
    step: float,
    scale: float,
) -> bool:
    x, y, name = point
    for across, up, horizontal, vertical in _DIRECTIONS:
        text = axes.annotate(
            name,
            (x, y),
            xytext=(across * step, up * step),
            textcoords="offset points",
            ha=horizontal,
            va=vertical,
            fontsize=6.5,
            color=SECOND,
        )
        box = text.get_window_extent().padded(1.0 * scale)
        free = (
            inside.x0 <= box.x0
            and box.x1 <= inside.x1
            and inside.y0 <= box.y0
            and box.y1 <= inside.y1
            and not any(box.overlaps(other) for other in taken)
            and not box.count_contains(ground)
        )
        if free:
            taken.append(box)
            return True
        text.remove()
    return False


def _ground(axes: Axes) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return points along the lines and markers of the axes, close together, in pixels."""
    pieces = [np.empty((0, 2))]
    paths = [(line.get_xydata(), line.get_linestyle() not in _NO_LINE) for line in axes.get_lines()]
    for collection in axes.collections:
        if isinstance(collection, LineCollection):
            paths.extend((segment, True) for segment in collection.get_segments())
    for data, drawn in paths:
        path = np.asarray(axes.transData.transform(np.asarray(data, dtype=np.float64)))
        path = path[np.isfinite(path).all(axis=1)]
        pieces.append(path)
        if drawn:
            for start, end in itertools.pairwise(path):
                steps = max(2, int(np.hypot(*(end - start)) / 3))
                pieces.append(start + np.linspace(0, 1, steps)[:, None] * (end - start))
    return np.concatenate(pieces)
