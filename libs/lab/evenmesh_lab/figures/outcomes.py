"""Outcomes of the turns of conversations, topic by topic (Sakai 2023, figures 2 to 4)."""

from __future__ import annotations

from typing import Final

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from evenmesh_lab.figures.style import COLUMN_INCHES, figure, legend_below, shortened, styled
from evenmesh_lab.studies.stability import StabilityStudy

_KINDS: Final = ("useful", "not useful", "not reached", "not marked")
_COLOURS: Final = ("#2a9d62", "#e07b39", "#c9ced4", "#f4f4f2")
_INK: Final = "#10151a"
_MOST_TOPICS: Final = 60


def draw_outcomes(study: StabilityStudy) -> Figure:
    """Draw a row for each of the first sixty topics, a column for each turn of each trial and system."""
    trials = [(system, trial) for system, held in study.patterns.items() for trial in sorted(held)]
    topics = list(dict.fromkeys(topic for system, trial in trials for topic in study.patterns[system][trial]))
    shown = topics[:_MOST_TOPICS]
    turns = study.num_turns
    kinds = np.full((len(shown), len(trials) * turns), 2)
    for block, (system, trial) in enumerate(trials):
        held = study.patterns[system][trial]
        for row, topic in enumerate(shown):
            for turn, mark in enumerate(held.get(topic, ())):
                kinds[row, block * turns + turn] = 3 if mark is None else 0 if mark else 1
    with styled():
        width = max(COLUMN_INCHES, 1.1 + 0.17 * kinds.shape[1])
        made, axes = figure(width, 1.1 + 0.13 * len(shown))
        edges = np.arange(kinds.shape[1] + 1) - 0.5
        axes.pcolormesh(
            edges,
            np.arange(len(shown) + 1) - 0.5,
            kinds,
            cmap=ListedColormap(_COLOURS),
            vmin=-0.5,
            vmax=3.5,
            edgecolors="white",
            linewidth=0.6,
        )
        for block in range(1, len(trials)):
            axes.axvline(block * turns - 0.5, color=_INK, linewidth=1.1)
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_yticks(range(len(shown)), [shortened(topic, 16) for topic in shown], fontsize=5.5)
        several = any(len(held) > 1 for held in study.patterns.values())
        labels = [f"{system}\ntrial {trial}" if several else system for system, trial in trials]
        axes.set_xticks([block * turns + (turns - 1) / 2 for block in range(len(trials))], labels)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        used = [kind for kind in range(len(_KINDS)) if (kinds == kind).any()]
        for kind in used:
            axes.plot([], [], "s", color=_COLOURS[kind], label=_KINDS[kind])
        legend_below(made, axes, columns=len(used))
    return made
