"""Figures of the study of agents: systems by agent, rounds, batch sizes, streams, and how alike lists are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evenmesh_core.intervals import BootstrapInterval
from evenmesh_lab.figures.matrices import draw_matrix
from evenmesh_lab.figures.style import (
    COLUMN_INCHES,
    SECOND,
    figure,
    finish,
    series,
    shortened,
    spread,
    state,
    styled,
)
from evenmesh_lab.files.agent_runs import ONLINE
from evenmesh_lab.studies.agents import MACRO, THIRDS, AgentsStudy, Point


def agents_figures(study: AgentsStudy, *, stated: str = "") -> Mapping[str, Figure]:
    """Return the figures that have data, by name, each with a statement of its basis below."""
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
    """Draw a row for each agent, a mark for each system."""
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
                xerr=spread([one for _, one in known]),
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
        finish(made, axes, x="mean utility", numbers="x")
    return made


def _curve(points: Sequence[Point], label: str) -> Figure:
    """Draw a line for each system."""
    with styled():
        made, axes = figure()
        for index, system in enumerate(dict.fromkeys(point.system for point in points)):
            mine = [point for point in points if point.system == system]
            _line(axes, index, system, [point.place for point in mine], [point.macro for point in mine])
        places = sorted({point.place for point in points})
        axes.set_xticks(places, [str(place) for place in places])
        finish(made, axes, x=label, y=f"{MACRO} utility", numbers="y", columns=1)
    return made


def _stream(study: AgentsStudy) -> Figure:
    """Draw a line for each agent, the mean over agents first."""
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
        measured = f"utility, {ONLINE}\n− {study.frozen_system}"
        finish(made, axes, x="third of the stream", y=measured, numbers="y", columns=2)
    return made


def _line(
    axes: Axes, index: int, label: str, places: Sequence[float], values: Sequence[BootstrapInterval]
) -> None:
    colour, marker = series(index)
    axes.errorbar(
        places,
        [one.value for one in values],
        yerr=spread(values),
        fmt=f"{marker}-",
        color=colour,
        elinewidth=0.6,
        label=label,
    )


def _agreement(study: AgentsStudy, name: str, label: str, low: float) -> Figure | None:
    """Draw agents against agents under the last system that has lists; None without any."""
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
    return draw_matrix(values, agents, label=f"{label}, {system}, best {study.depth}", low=low, length=24)
