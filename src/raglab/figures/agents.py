"""Figures of the study of agents: systems by agent, rounds, batch sizes, streams, and how alike lists are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ragcore.arrays import FloatArray
from ragcore.intervals import BootstrapInterval
from raglab.figures.style import (
    COLUMN_INCHES,
    SECOND,
    figure,
    legend_below,
    plain_numbers,
    series,
    shortened,
    state,
    styled,
)
from raglab.files.agent_runs import ONLINE
from raglab.studies.agents import MACRO, THIRDS, AgentsStudy, Point

_DARK, _LIGHT, _UNDEFINED = "#10151a", "#fdfdfd", "#e9ecef"


def agents_figures(study: AgentsStudy, *, stated: str = "") -> Mapping[str, Figure]:
    """The figures that there is something to draw for, by name; below each stands what it stands on."""
    found = {"agents": _systems(study)}
    if len({point.place for point in study.rounds}) > 1:
        found["rounds"] = _curve(study.rounds, "rounds of training")
    if len(study.batches) > 1:
        found["batches"] = _curve(study.batches, "queries between two updates, b")
    if study.thirds:
        found["stream"] = _stream(study)
    for name, label, low in (("tau", "Kendall's τ", -1.0), ("jaccard", "Jaccard", 0.0)):
        drawn = _agreement(study, name, label, low)
        if drawn is not None:
            found[name] = drawn
    text = "; ".join(part for part in (study.statement(), stated) if part)
    return {name: state(made, text) for name, made in found.items()}


def _systems(study: AgentsStudy) -> Figure:
    """A row for each agent, a mark for each system."""
    rows = [*study.agents, MACRO]
    with styled():
        height = 0.8 + len(rows) * max(0.22, 0.055 * len(study.systems) + 0.06)
        made, axes = figure(COLUMN_INCHES * 1.35, min(height, 9.0))
        step = 0.8 / max(len(study.systems), 1)
        for index, system in enumerate(study.systems):
            colour, marker = series(index)
            offset = (index - (len(study.systems) - 1) / 2) * step
            known = [
                (place + offset, one)
                for place, one in enumerate((*system.by_agent, system.macro))
                if one is not None and not np.isnan(one.value)
            ]
            axes.errorbar(
                [one.value for _, one in known],
                [place for place, _ in known],
                xerr=_spread([one for _, one in known]),
                fmt=marker,
                markersize=3,
                elinewidth=0.6,
                color=colour,
                label=shortened(system.name, 30),
            )
        axes.axhline(len(rows) - 1.5, color=SECOND, linewidth=0.5)
        axes.set_yticks(range(len(rows)), [shortened(name, 30) for name in rows])
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlabel("mean utility")
        axes.xaxis.grid(visible=True)
        axes.xaxis.set_major_formatter(plain_numbers())
        legend_below(made, axes)
    return made


def _curve(points: Sequence[Point], label: str) -> Figure:
    """A line for each system."""
    with styled():
        made, axes = figure()
        for index, system in enumerate(dict.fromkeys(point.system for point in points)):
            mine = [point for point in points if point.system == system]
            _line(axes, index, system, [point.place for point in mine], [point.macro for point in mine])
        places = sorted({point.place for point in points})
        axes.set_xticks(places, [str(place) for place in places])
        axes.set_xlabel(label)
        axes.set_ylabel(f"{MACRO} utility")
        axes.yaxis.grid(visible=True)
        axes.yaxis.set_major_formatter(plain_numbers())
        legend_below(made, axes, columns=1)
    return made


def _stream(study: AgentsStudy) -> Figure:
    """A line for each agent, the mean over agents in front."""
    with styled():
        made, axes = figure(COLUMN_INCHES, 3.2)
        agents = [name for name in study.agents if any(one.agent == name for one in study.thirds)]
        for index, agent in enumerate([MACRO, *agents]):
            mine = [one for one in study.thirds if one.agent == agent]
            _line(
                axes,
                index,
                shortened(agent, 26),
                [one.third + 0.04 * index for one in mine],
                [one.difference for one in mine],
            )
        axes.axhline(0, color=SECOND, linewidth=0.6)
        axes.set_xticks(range(1, THIRDS + 1), ["first", "second", "last"])
        axes.set_xlabel("third of the stream")
        axes.set_ylabel(f"utility, {ONLINE}\n− {study.still}")
        axes.yaxis.grid(visible=True)
        axes.yaxis.set_major_formatter(plain_numbers())
        legend_below(made, axes, columns=2)
    return made


def _line(
    axes: Axes, index: int, label: str, places: Sequence[float], values: Sequence[BootstrapInterval]
) -> None:
    colour, marker = series(index)
    axes.errorbar(
        places,
        [one.value for one in values],
        yerr=_spread(values),
        fmt=f"{marker}-",
        color=colour,
        elinewidth=0.6,
        label=label,
    )


def _agreement(study: AgentsStudy, name: str, label: str, low: float) -> Figure | None:
    """Agents against agents, under the last system that there are lists of; None without any."""
    if not study.agreements:
        return None
    system = study.agreements[-1].system
    pairs = [one for one in study.agreements if one.system == system]
    agents = [agent for agent in study.agents if any(agent in (one.first, one.second) for one in pairs)]
    place = {agent: at for at, agent in enumerate(agents)}
    values = np.full((len(agents), len(agents)), np.nan)
    for one in pairs:
        at, beside = place[one.first], place[one.second]
        values[at, beside] = values[beside, at] = getattr(one, name).value
    return _matrix(values, agents, f"{label}, {system}, best {study.depth}", low)


def _matrix(values: FloatArray, agents: Sequence[str], label: str, low: float) -> Figure:
    size = len(agents)
    with styled():
        made, axes = figure(max(COLUMN_INCHES, 1.9 + 0.36 * size), max(2.3, 1.3 + 0.32 * size))
        edges = np.arange(size + 1) - 0.5
        axes.set_facecolor(_UNDEFINED)
        image = axes.pcolormesh(
            edges, edges, np.ma.masked_invalid(values), cmap="cividis", vmin=low, vmax=1.0
        )
        axes.set_ylim(size - 0.5, -0.5)
        for row in range(size):
            for column in range(size):
                value = values[row, column]
                text = "" if row == column else "–" if np.isnan(value) else f"{value:.2f}"
                dark = np.isnan(value) or (value - low) / (1 - low) > 0.55
                axes.text(
                    column,
                    row,
                    text.replace("-", "−"),
                    ha="center",
                    va="center",
                    color=_DARK if dark else _LIGHT,
                    fontsize=6.5,
                )
        names = [shortened(name, 24) for name in agents]
        axes.set_xticks(range(size), names)
        for tick in axes.get_xticklabels():
            tick.set(rotation=40, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(size), names)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        bar = made.colorbar(image, ax=axes, fraction=0.05, pad=0.03)
        bar.set_label(label, fontsize=7, color=SECOND)
        bar.outline.set_visible(False)
    return made


def _spread(intervals: Sequence[BootstrapInterval]) -> FloatArray:
    """Distances to the ends, [2, P]; 0 where there is no interval."""
    values = np.array([one.value for one in intervals])
    low = np.array([one.low for one in intervals])
    high = np.array([one.high for one in intervals])
    spread: FloatArray = np.nan_to_num(np.maximum(np.stack([values - low, high - values]), 0.0))
    return spread
