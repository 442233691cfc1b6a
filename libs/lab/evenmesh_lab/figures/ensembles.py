"""Figures of the EoR study: where retrievers disagree, and what an ensemble makes of it."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from evenmesh_lab.figures.boxes import Level, draw_boxes
from evenmesh_lab.figures.matrices import draw_win_ratios
from evenmesh_lab.figures.style import (
    COLUMN_INCHES,
    INK,
    figure,
    finish,
    series,
    shortened,
    slant,
    styled,
)
from evenmesh_lab.figures.weights import draw_weights
from evenmesh_lab.studies.eor import EOR, EorStudy, SettingFindings
from evenmesh_lab.studies.inconsistency import KIND_LABELS, InconsistencyStudy


def eor_figures(study: EorStudy) -> Mapping[str, Figure]:
    """Return figures 1 to 6 of the paper by name, with the setting's name if there are several."""
    found: dict[str, Figure] = {}
    named = list(zip(study.names, study.settings, strict=True))
    several = len(named) > 1

    def add(name: str, of: str, drawn: Figure) -> None:
        if several:
            with styled():
                drawn.axes[0].set_title(of)
        found[f"{name}-{_stem(of)}" if several else name] = drawn

    for of, one in named:
        add("win-ratios", of, _map(one.retrievers, one.retrievers.win_ratios.matrix))
    found["lose-ratios"] = draw_boxes(
        {"": {of: one.retrievers.win_ratios.mrlr for of, one in named}},
        x_label="",
        y_label="mean lose ratio of retrievers",
    )
    found["accuracy"] = draw_accuracies(study)
    for of, one in named:
        if one.errors is not None and one.errors.error_win_ratios is not None:
            for kind in one.errors.errors:
                matrix = getattr(one.errors.error_win_ratios, kind)
                drawn = _map(one.errors, matrix, KIND_LABELS[kind])
                add(f"win-ratios-{kind.replace('_', '-')}", of, drawn)
                # Only the questions whose kinds of errors can be distinguished, fewer than stated below.
                questions = f"{len(one.errors.query_ids):,} of {one.num_test:,} test questions"
                with styled():
                    drawn.axes[0].set_title(f"{of}: {questions}" if several else questions)
    for of, one in named:
        bounds = draw_upper_bounds(one)
        if bounds is not None:
            add("upper-bounds", of, bounds)
    found["weights"] = draw_weights(
        {of: one.vote.retriever_weights for of, one in named},
        study.settings[0].vote.retrievers,
        floor=study.retriever_filter,
    )
    return found


def draw_accuracies(study: EorStudy) -> Figure:
    """Draw the test accuracy of each retriever and of the ensemble, with intervals: a line for each setting.

    Retrievers are in the order of their accuracy in the first setting.
    """
    first = study.settings[0]
    names = first.vote.retrievers
    order = np.argsort([-one.value for one in first.accuracies], kind="stable").tolist()
    with styled():
        made, axes = figure(max(COLUMN_INCHES, 1.0 + 0.27 * (len(names) + 1)), 2.6)
        for index, (name, one) in enumerate(zip(study.names, study.settings, strict=True)):
            colour, marker = series(index)
            intervals = [one.accuracies[place] for place in order]
            values = np.array([interval.value for interval in intervals])
            axes.plot(values, marker, linestyle="-", color=colour, label=shortened(name, 34), zorder=3)
            if one.vote.accuracy is not None:
                intervals.append(one.vote.accuracy)
                axes.plot(len(names), one.vote.accuracy.value, marker, color=colour, markersize=6, zorder=3)
            for place, interval in enumerate(intervals):
                axes.plot(
                    [place, place],
                    [interval.low, interval.high],
                    color=colour,
                    linewidth=0.7,
                    alpha=0.7,
                )
        axes.axvline(len(names) - 0.5, color=INK, linewidth=0.5)
        axes.set_xticks(range(len(names) + 1), [*(shortened(names[place], 20) for place in order), EOR])
        slant(axes)
        finish(made, axes, y="accuracy", numbers="y", columns=2)
    return made


def draw_upper_bounds(one: SettingFindings) -> Figure | None:
    """Draw the accuracy of perfect votes over all pools of each size; None where there are too many pools."""
    bounds = one.retrievers.upper_bounds
    if bounds is None:
        return None
    levels = [Level(f"best single: {one.vote.retrievers[one.best]}", one.accuracies[one.best].value)]
    if one.vote.accuracy is not None:
        levels.append(Level(EOR, one.vote.accuracy.value, dashed=False))
    return draw_boxes(
        {"": {str(size): pools for size, pools in enumerate(bounds.by_size, start=1)}},
        x_label="retrievers in the pool",
        y_label="accuracy of a perfect vote",
        levels=levels,
    )


def _map(
    study: InconsistencyStudy, matrix: np.ndarray[tuple[int, int], np.dtype[np.float64]], error: str = ""
) -> Figure:
    """Draw a heat map, the most accurate retriever first."""
    order = np.argsort([-one.accuracy.value for one in study.summaries], kind="stable")
    names = [study.retrievers[place] for place in order]
    return draw_win_ratios(matrix[np.ix_(order, order)], names, error=error)


def _stem(name: str) -> str:
    """Return a name as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")
