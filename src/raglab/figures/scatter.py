"""Relevance against group fairness of conversations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from raglab.figures.labels import name_points
from raglab.figures.style import FAINT, figure, legend_below, plain_numbers, series, shortened, styled
from raglab.studies.conversation import ConversationRow

_MOST_NAMED = 24


def draw_conversations(rows: Sequence[ConversationRow]) -> Figure:
    """A point for each conversation, a colour and marker for each system, a cross at its mean; up to two
    dozen points carry their topic where there is room."""
    systems = list(dict.fromkeys(row.system for row in rows))
    with styled():
        made, axes = figure()
        for place, system in enumerate(systems):
            colour, marker = series(place)
            mine = [row for row in rows if row.system == system]
            x = np.array([row.relevance for row in mine])
            y = np.array([row.group_fairness for row in mine])
            axes.plot(x, y, marker, color=colour, alpha=0.75, label=system, markeredgewidth=0)
            if len(mine) > 1:
                axes.plot(x.mean(), y.mean(), "+", color=colour, markersize=11, markeredgewidth=1.6, zorder=4)
        axes.set_xlabel("relevance R")
        axes.set_ylabel("group fairness GF")
        axes.margins(0.14)
        axes.grid(visible=True, color=FAINT)
        axes.xaxis.set_major_formatter(plain_numbers())
        axes.yaxis.set_major_formatter(plain_numbers())
        legend_below(made, axes)
        if len(rows) <= _MOST_NAMED:
            names = [(row.relevance, row.group_fairness, shortened(row.topic, 12)) for row in rows]
            name_points(made, axes, names)
    return made
