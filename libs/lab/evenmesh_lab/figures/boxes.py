"""Box plots: the spread of values, not only their mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.cbook import boxplot_stats
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from evenmesh_lab.figures.style import (
    COLUMN_INCHES,
    INK,
    SECOND,
    figure,
    finish,
    series,
    shortened,
    slant,
    styled,
)


@dataclass(frozen=True)
class Level:
    """A horizontal reference line."""

    label: str
    value: float
    dashed: bool = True


def draw_boxes(
    boxes: Mapping[str, Mapping[str, ArrayLike]],
    *,
    x_label: str,
    y_label: str,
    levels: Sequence[Level] = (),
) -> Figure:
    """Draw boxes from the first to the third quartile, a line at the median, points for outliers.

    Whiskers reach the farthest value within 1.5 times the box.

    Args:
        boxes: by series and place on the horizontal axis: values, of which ``nan`` are left out. All
            series have the same places; a place without values has no box.
        x_label: label of the horizontal axis; empty for none.
        y_label: label of the vertical axis.
        levels: lines across.
    """
    places = list(dict.fromkeys(place for mine in boxes.values() for place in mine))
    thickness = 0.72 / max(len(boxes), 1)
    with styled():
        made, axes = figure(max(COLUMN_INCHES, 0.9 + 0.28 * len(places) * max(1, len(boxes) * 0.6)), 2.4)
        for index, (name, mine) in enumerate(boxes.items()):
            colour = series(index)[0]
            offset = (index - (len(boxes) - 1) / 2) * thickness
            kept = [_defined(mine[place]) if place in mine else np.empty(0) for place in places]
            drawn = axes.bxp(
                [_box(values) for values in kept],
                positions=np.arange(len(places)) + offset,
                widths=thickness * 0.85,
                patch_artist=True,
                manage_ticks=False,
                flierprops={"marker": ".", "markersize": 2.5, "markeredgecolor": colour},
            )
            for box in drawn["boxes"]:
                box.set(facecolor=colour, alpha=0.35, edgecolor=colour, linewidth=0.8)
            for part in (*drawn["whiskers"], *drawn["caps"]):
                part.set(color=colour, linewidth=0.8)
            for middle in drawn["medians"]:
                middle.set(color=INK, linewidth=1.1)
            if len(boxes) > 1:
                axes.plot([], [], "s", color=colour, alpha=0.6, label=shortened(name, 30))
        for place, level in enumerate(levels):
            axes.axhline(
                level.value,
                color=(SECOND, INK)[place % 2],
                linestyle="--" if level.dashed else "-",
                linewidth=0.9,
                label=level.label,
                zorder=1,
            )
        axes.set_xticks(range(len(places)), [shortened(place, 20) for place in places])
        if sum(map(len, places)) > 60:
            slant(axes)
        axes.set_xlim(-0.6, len(places) - 0.4)
        finish(made, axes, x=x_label, y=y_label, numbers="y", columns=2)
    return made


def _box(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> dict[str, Any]:
    """Return the numbers of one box; equal points, frequent among pools of retrievers, count once."""
    (box,) = boxplot_stats(values)
    return {**box, "fliers": np.unique(box["fliers"])}


def _defined(values: ArrayLike) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    array = np.asarray(values, dtype=np.float64).ravel()
    return array[~np.isnan(array)]
