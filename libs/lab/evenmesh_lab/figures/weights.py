"""Learned weights of retrievers, a row for each ensemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from evenmesh_lab.figures.style import (
    COLUMN_INCHES,
    FAINT,
    SECOND,
    colour_bar,
    figure,
    shortened,
    slant,
    styled,
)

_AREA = 130.0  # of the largest circle, in square points


def draw_weights(
    weights: Mapping[str, Sequence[float]], retrievers: Sequence[str], *, floor: float = 0.0
) -> Figure:
    """Draw a circle for each weight, larger and darker for a larger weight.

    Weights up to the floor, with which an answer cannot win, are small crosses.

    Args:
        weights: by ensemble, the weight of each retriever, from 0.
        retrievers: M names.
        floor: largest weight with which an answer cannot win.
    """
    rows = np.array([list(one) for one in weights.values()], dtype=np.float64)
    most = float(rows.max()) if rows.size and rows.max() > 0 else 1.0
    with styled():
        width = max(COLUMN_INCHES, 1.2 + 0.3 * len(retrievers))
        made, axes = figure(width, 1.35 + 0.32 * len(weights))
        y, x = np.nonzero(rows > floor)
        values = rows[y, x]
        drawn = axes.scatter(
            x,
            y,
            s=_AREA * values / most,
            c=values,
            cmap="viridis_r",
            vmin=0.0,
            vmax=most,
            edgecolors=SECOND,
            linewidths=0.4,
            zorder=3,
        )
        low_y, low_x = np.nonzero(rows <= floor)
        axes.plot(low_x, low_y, "x", color=SECOND, markersize=3, linestyle="none", zorder=3)
        axes.set_xticks(range(len(retrievers)), [shortened(name, 20) for name in retrievers])
        slant(axes)
        axes.set_yticks(range(len(weights)), [shortened(name, 28) for name in weights])
        axes.set_xlim(-0.6, len(retrievers) - 0.4)
        axes.set_ylim(len(weights) - 0.4, -0.6)
        axes.grid(visible=True, color=FAINT)
        axes.tick_params(length=0)
        colour_bar(made, axes, drawn, "weight", pad=0.02)
    return made
