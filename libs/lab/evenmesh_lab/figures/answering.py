"""Figures of the answering study: answers by system, answer recall, answers against time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from matplotlib.figure import Figure

from evenmesh_lab.figures.style import (
    COLUMN_INCHES,
    SECOND,
    figure,
    finish,
    series,
    shortened,
    spread,
    styled,
)
from evenmesh_lab.studies.answering import MEASURES, AnsweringStudy

MOST_SYSTEMS: Final = 24
_TALLEST_INCHES: Final = 7.0


def answering_figures(study: AnsweringStudy, note: str = "") -> Mapping[str, Figure]:
    """Return the figures of a study by name, with the data set's name if there are several.

    Args:
        study: what was found.
        note: stands small above each figure: seeds and versions. A line or more.
    """
    found: dict[str, Figure] = {}
    for dataset in study.datasets:
        ending = "" if len(study.datasets) == 1 else f"-{dataset.replace('/', '-')}"
        for name, drawn in (
            ("answers", draw_answers(study, dataset)),
            ("answer-recall", draw_recall(study, dataset)),
            ("answers-time", draw_cost(study, dataset)),
        ):
            if drawn is not None:
                questions = max(one.questions for one in study.summaries if one.dataset == dataset)
                heading = f"{dataset}, {questions:,} questions; {study.bootstrap.level:.0%} intervals"
                with styled():
                    drawn.axes[0].set_title(
                        f"{heading}\n{note}" if note else heading,
                        fontsize=5.5,
                        fontweight="normal",
                        color=SECOND,
                    )
                found[f"{name}{ending}"] = drawn
    return found


def draw_answers(study: AnsweringStudy, dataset: str) -> Figure | None:
    """Draw a mark with its interval for each system and measure; at most the first 24 systems."""
    summaries = [one for one in study.summaries if one.dataset == dataset and one.means][:MOST_SYSTEMS]
    measures = [name for name in MEASURES if any(name in one.means for one in summaries)]
    if not measures:
        return None
    with styled():
        height = 0.75 + len(summaries) * (0.14 + 0.1 * len(measures))
        made, axes = figure(COLUMN_INCHES, min(max(height, 1.6), _TALLEST_INCHES))
        for index, name in enumerate(measures):
            colour, marker = series(index)
            offset = (index - (len(measures) - 1) / 2) * 0.22
            for place, one in enumerate(summaries):
                interval = one.means.get(name)
                if interval is None:
                    continue
                axes.errorbar(
                    [interval.value],
                    [place + offset],
                    xerr=spread([interval]),
                    fmt=marker,
                    color=colour,
                    elinewidth=0.8,
                    label=MEASURES[name] if place == 0 else None,
                )
        axes.set_yticks(range(len(summaries)), [shortened(one.system, 28) for one in summaries])
        axes.set_ylim(len(summaries) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        finish(made, axes, x="mean over questions", numbers="x")
    return made


def draw_recall(study: AnsweringStudy, dataset: str) -> Figure | None:
    """Draw answer recall over depth: dashed as retrieved, solid as ranked."""
    mine = [one for one in study.recalls if one.kind == "answer" and one.dataset == dataset]
    names = list(dict.fromkeys(one.system for one in mine))[:MOST_SYSTEMS]
    if not names or len({one.depth for one in mine}) < 2:
        return None
    with styled():
        made, axes = figure()
        for place, name in enumerate(names):
            points = [one for one in mine if one.system == name]
            # Beside each other, so that no interval hides another.
            shift = 0.25 * (place - (len(names) - 1) / 2)
            colour, marker = series(place)
            axes.errorbar(
                [one.depth + shift for one in points],
                [one.after.value for one in points],
                yerr=spread([one.after for one in points]),
                color=colour,
                marker=marker,
                linestyle="--" if points[0].reranker == "none" else "-",
                elinewidth=0.7,
                label=name,
            )
        axes.set_xticks(sorted({one.depth for one in mine}))
        finish(made, axes, x="passages from the top", y="answer recall", numbers="y", grid="xy", columns=2)
    return made


def draw_cost(study: AnsweringStudy, dataset: str) -> Figure | None:
    """Draw exact match (for multiple choice accuracy) over the time of ranking and generating together."""
    answers = {one.system: one.means for one in study.summaries if one.dataset == dataset}
    points = []
    measure = "exact_match" if any("exact_match" in means for means in answers.values()) else "accuracy"
    for one in study.times:
        interval = answers.get(one.system, {}).get(measure)
        taken = one.rerank.value + one.generate.value
        if interval is not None and not math.isnan(taken):
            points.append((taken, interval, one.system))
    if len(points) < 2:
        return None
    with styled():
        made, axes = figure()
        for place, (taken, interval, name) in enumerate(points):
            colour, marker = series(place)
            axes.errorbar(
                [taken],
                [interval.value],
                yerr=spread([interval]),
                fmt=marker,
                color=colour,
                elinewidth=0.8,
                label=shortened(name, 30),
            )
        axes.set_xlim(0, 1.1 * max(taken for taken, _, _ in points))
        taken_by = "rerank + generate, milliseconds a question"
        right = measure.replace("_", " ")
        finish(made, axes, x=taken_by, y=right, numbers="y", grid="xy", columns=2)
    return made
