"""Heat maps of names against names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from evenmesh_lab.figures.style import COLUMN_INCHES, colour_bar, figure, shortened, slant, styled

_DARK, _LIGHT = "#10151a", "#fdfdfd"  # text within cells, whose colours are the same on any page
_UNDEFINED: Final = "#e9ecef"
_DARK_FROM: Final = 0.55  # share of the colour scale above which text is dark


def draw_matrix(
    matrix: ArrayLike,
    names: Sequence[str],
    *,
    label: str,
    low: float = 0.0,
    length: int = 16,
    x_label: str = "",
    y_label: str = "",
) -> Figure:
    """Draw a heat map, each cell with its number; undefined cells are a dash, the diagonal is empty.

    Args:
        matrix: matrix [M, M] in [low, 1], ``nan`` where undefined.
        names: M names.
        label: label of the colours.
        low: smallest value.
        length: longest name shown in full. Characters.
        x_label: label of the columns.
        y_label: label of the rows.
    """
    size = len(names)
    values = np.array(matrix, dtype=np.float64)
    np.fill_diagonal(values, np.nan)
    shown = [shortened(name, length) for name in names]
    with styled():
        width, height = 0.7 + 0.05 * length + 0.36 * size, 0.7 + 0.025 * length + 0.32 * size
        made, axes = figure(max(COLUMN_INCHES, width), max(2.3, height))
        edges = np.arange(size + 1) - 0.5
        axes.set_facecolor(_UNDEFINED)
        masked = np.ma.masked_invalid(values)
        image = axes.pcolormesh(edges, edges, masked, cmap="cividis", vmin=low, vmax=1.0)
        axes.set_ylim(size - 0.5, -0.5)
        for row in range(size):
            for column in range(size):
                value = values[row, column]
                text = "" if row == column else "–" if np.isnan(value) else f"{value:.2f}".replace("-", "−")
                dark = np.isnan(value) or (value - low) / (1 - low) > _DARK_FROM
                colour = _DARK if dark else _LIGHT
                axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=6.5)
        axes.set_xticks(range(size), shown)
        if max(map(len, shown)) > 5:
            slant(axes)
        axes.set_yticks(range(size), shown)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        colour_bar(made, axes, image, label)
    return made


def draw_win_ratios(matrix: ArrayLike, retrievers: Sequence[str], *, error: str = "") -> Figure:
    """Draw the row's retriever against the column's.

    Args:
        matrix: matrix [M, M] in [0, 1], ``nan`` where undefined.
        retrievers: M names.
        error: the kind of error that rows avoid and columns commit; empty for right and wrong answers.
    """
    return draw_matrix(
        matrix,
        retrievers,
        label="relative win ratio",
        x_label="… that this one commits" if error else "… where this one is wrong",
        y_label=f"avoids the {error} …" if error else "this one is right …",
    )
