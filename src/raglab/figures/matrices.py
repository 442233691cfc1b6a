"""Heat maps of retrievers against retrievers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from ragcore.arrays import FloatArray
from raglab.figures.style import COLUMN_INCHES, SECOND, figure, shortened, styled

_DARK, _LIGHT = "#10151a", "#fdfdfd"  # the map's own text: its cells keep their colours on any page

_UNDEFINED = "#e9ecef"


def draw_win_ratios(matrix: FloatArray, retrievers: Sequence[str], *, error: str = "") -> Figure:
    """The row's retriever against the column's, each cell with its number; undefined cells are a dash.

    Args:
        matrix: matrix [M, M] in [0, 1], ``nan`` where undefined.
        retrievers: M names.
        error: the kind of error that rows avoid and columns commit; empty for right and wrong answers.
    """
    size = len(retrievers)
    values = np.array(matrix, dtype=np.float64)
    np.fill_diagonal(values, np.nan)
    with styled():
        width = max(COLUMN_INCHES, 1.5 + 0.36 * size)
        made, axes = figure(width, max(2.3, 1.1 + 0.32 * size))
        edges = np.arange(size + 1) - 0.5
        axes.set_facecolor(_UNDEFINED)
        image = axes.pcolormesh(
            edges, edges, np.ma.masked_invalid(values), cmap="cividis", vmin=0.0, vmax=1.0
        )
        axes.set_ylim(size - 0.5, -0.5)
        for row in range(size):
            for column in range(size):
                value = values[row, column]
                text = "" if row == column else "–" if np.isnan(value) else f"{value:.2f}"
                colour = _DARK if np.isnan(value) or value > 0.55 else _LIGHT
                axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=6.5)
        names = [shortened(name, 16) for name in retrievers]
        slanted = max(map(len, names)) > 5
        axes.set_xticks(range(size), names)
        if slanted:
            for tick in axes.get_xticklabels():
                tick.set(rotation=40, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(size), names)
        axes.set_xlabel("… that this one commits" if error else "… where this one is wrong")
        axes.set_ylabel(f"avoids the {error} …" if error else "this one is right …")
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        bar = made.colorbar(image, ax=axes, fraction=0.05, pad=0.03)
        bar.set_label("relative win ratio", fontsize=7, color=SECOND)
        bar.outline.set_visible(False)
    return made
