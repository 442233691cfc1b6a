"""Relevance against group fairness of conversations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from evenmesh_lab.figures.labels import name_points
from evenmesh_lab.figures.style import figure, finish, series, shortened, styled
from evenmesh_lab.studies.conversation import ConversationRow

_MOST_NAMED = 24


def draw_conversations(rows: Sequence[ConversationRow]) -> Figure:
    """Draw a point for each conversation, a colour and marker for each system, and a cross at its mean.

    Up to two dozen points are named by their topic, where there is room.
    """
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
        axes.margins(0.14)
        finish(made, axes, x="relevance R", y="group fairness GF", numbers="xy")
        if len(rows) <= _MOST_NAMED:
            names = [(row.relevance, row.group_fairness, shortened(row.topic, 12)) for row in rows]
            name_points(made, axes, names)
    return made
