"""Curves of quality and utility over disparity, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evenmesh_lab.figures.labels import name_points
from evenmesh_lab.figures.style import (
    SECOND,
    ends,
    figure,
    finish,
    series,
    spread,
    styled,
)
from evenmesh_lab.studies.curves import Curve

AXES: Final = {
    "disparity-quality": ("disparity: EE-D, of its bound", "quality: EE-R, of its bound"),
    "disparity-utility": ("disparity: EE-D, of its bound", "utility: EU, of its maximum"),
    "quality-utility": ("quality: EE-R, of its bound", "utility: EU, of its maximum"),
}
"""Labels of x and y by the curve's name."""

_LEAST_SPAN: Final = 0.1


def draw_curves(curves: Sequence[Curve]) -> Figure:
    """Draw systems in one figure: a point for each α with its intervals, and the band of y between them.

    The first system's points are named by their α. A deterministic ranking is an open point.

    Args:
        curves: curves of one name, one for each system.
    """
    x_label, y_label = AXES[curves[0].name]
    with styled():
        made, axes = figure()
        for place, one in enumerate(curves):
            _draw(axes, one, place)
        axes.margins(0.06)
        _widen(axes)
        if any(point.alpha is None for one in curves for point in one.points):
            axes.plot([], [], "o", color=SECOND, markerfacecolor="white", label="deterministic")
        finish(made, axes, x=x_label, y=y_label, numbers="xy")
        name_points(made, axes, _dials(curves[0]))
    return made


def _widen(axes: Axes) -> None:
    """Widen axes of shares that hardly differ, so that they look equal."""
    for low, high, setter in ((*axes.get_xlim(), axes.set_xlim), (*axes.get_ylim(), axes.set_ylim)):
        if high - low < _LEAST_SPAN:
            middle = (low + high) / 2
            setter(middle - _LEAST_SPAN / 2, middle + _LEAST_SPAN / 2)


def _draw(axes: Axes, one: Curve, place: int) -> None:
    colour, marker = series(place)
    ordered = sorted(one.points, key=lambda point: point.x.value)
    x = np.array([point.x.value for point in ordered])
    y = np.array([point.y.value for point in ordered])
    _, low, high = ends([point.y for point in ordered])
    axes.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
    axes.plot(x, y, color=colour, zorder=2)
    axes.errorbar(
        x,
        y,
        xerr=spread([point.x for point in ordered]),
        yerr=spread([point.y for point in ordered]),
        fmt="none",
        ecolor=colour,
        elinewidth=0.6,
        alpha=0.7,
        zorder=2,
    )
    sampled = np.array([point.alpha is not None for point in ordered])
    axes.plot(x[sampled], y[sampled], marker, color=colour, label=one.system, zorder=3)
    axes.plot(x[~sampled], y[~sampled], marker, color=colour, markerfacecolor="white", zorder=3)


def _dials(one: Curve) -> list[tuple[float, float, str]]:
    """Return the α of each point, the ends of the curve first: names matter most there."""
    ordered = sorted(one.points, key=lambda point: point.x.value)
    ordered = [*ordered[:1], *ordered[-1:], *ordered[1:-1]] if len(ordered) > 1 else ordered
    return [
        (point.x.value, point.y.value, f"α = {point.alpha:g}") for point in ordered if point.alpha is not None
    ]
