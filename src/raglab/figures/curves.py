"""Curves of quality and utility over disparity, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ragcore.arrays import FloatArray
from ragcore.intervals import BootstrapInterval
from raglab.figures.labels import name_points
from raglab.figures.style import SECOND, figure, legend_below, plain_numbers, series, styled
from raglab.studies.curves import Curve

AXES: Final = {
    "disparity-quality": ("disparity: EE-D, of its bound", "quality: EE-R, of its bound"),
    "disparity-utility": ("disparity: EE-D, of its bound", "utility: EU, of its maximum"),
    "quality-utility": ("quality: EE-R, of its bound", "utility: EU, of its maximum"),
}
"""Labels of x and y by the curve's name."""

_LEAST_SPAN: Final = 0.1


def draw_curves(curves: Sequence[Curve]) -> Figure:
    """Systems in one figure: a point for each α with the interval of its mean in both directions, the band of
    y between them, and the first system's points named by their α. A deterministic ranking is an open point.

    Args:
        curves: curves of one name, one for each system.
    """
    x_label, y_label = AXES[curves[0].name]
    with styled():
        made, axes = figure()
        for place, one in enumerate(curves):
            _draw(axes, one, place)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.grid(visible=True)
        axes.margins(0.06)
        _widen(axes)
        axes.xaxis.set_major_formatter(plain_numbers())
        axes.yaxis.set_major_formatter(plain_numbers())
        if any(point.alpha is None for one in curves for point in one.points):
            axes.plot([], [], "o", color=SECOND, markerfacecolor="white", label="deterministic")
        legend_below(made, axes)
        name_points(made, axes, _dials(curves[0]))
    return made


def _widen(axes: Axes) -> None:
    """Shares that hardly differ keep an axis on which they look so."""
    for low, high, setter in ((*axes.get_xlim(), axes.set_xlim), (*axes.get_ylim(), axes.set_ylim)):
        if high - low < _LEAST_SPAN:
            middle = (low + high) / 2
            setter(middle - _LEAST_SPAN / 2, middle + _LEAST_SPAN / 2)


def _draw(axes: Axes, one: Curve, place: int) -> None:
    colour, marker = series(place)
    ordered = sorted(one.points, key=lambda point: point.x.value)
    x = np.array([point.x.value for point in ordered])
    y = np.array([point.y.value for point in ordered])
    low, high = _ends([point.y for point in ordered])
    axes.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
    axes.plot(x, y, color=colour, zorder=2)
    axes.errorbar(
        x,
        y,
        xerr=_spread([point.x for point in ordered]),
        yerr=_spread([point.y for point in ordered]),
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
    """The α of each point, the ends of the curve first, where names matter most."""
    ordered = sorted(one.points, key=lambda point: point.x.value)
    ordered = [*ordered[:1], *ordered[-1:], *ordered[1:-1]] if len(ordered) > 1 else ordered
    return [
        (
            point.x.value,
            point.y.value,
            f"α = {point.alpha:g}",
        )
        for point in ordered
        if point.alpha is not None
    ]


def _ends(intervals: Sequence[BootstrapInterval]) -> tuple[FloatArray, FloatArray]:
    """Lower and upper ends; the value itself where there is no interval."""
    values = np.array([one.value for one in intervals])
    low = np.array([one.low for one in intervals])
    high = np.array([one.high for one in intervals])
    return np.where(np.isnan(low), values, low), np.where(np.isnan(high), values, high)


def _spread(intervals: Sequence[BootstrapInterval]) -> FloatArray:
    """Distances to the ends, [2, P]; a BCa interval need not hold its value."""
    values = np.array([one.value for one in intervals])
    low, high = _ends(intervals)
    spread: FloatArray = np.maximum(np.stack([values - low, high - values]), 0.0)
    return spread
