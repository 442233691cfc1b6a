"""Draw the figures of a run."""

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from evenmesh_lab.figures.labels import name_points
from evenmesh_lab.figures.style import (
    COLUMN_INCHES,
    FAINT,
    INK,
    SECOND,
    figure,
    finish,
    series,
    state,
    styled,
)
from evenmesh_studies.load.analysis.knee import FACTOR
from evenmesh_studies.load.analysis.pareto import pareto_front
from evenmesh_studies.load.run import LoadRun, load_name
from evenmesh_studies.load.step import Distribution, StepResult

CAPTIONS = {
    "latency": "Latency by load, from the time a call was due. The line marks the knee, its band the 95 % "
    "interval; the dashed line is the mean that the queueing model predicts.",
    "waterfall": "Mean time of a call by stage.",
    "front": "Exposure, utility and latency by setting; filled points form the Pareto front.",
}
"""Captions by figure name."""

_POINTS = 60
_STAGES = ("sent late", "retrieve", "sample", "rerank", "generate", "observe", "report", "rest")


def run_figures(run: LoadRun) -> Mapping[str, Figure]:
    """Return the figures of a run by name, without those that have no data."""
    stated = "; ".join(f"{name}: {value}" for name, value in run.facts.items())
    found = {}
    if len(run.loads) > 1:
        found["latency"] = state(draw_latency(run), stated)
    if any(one.stages_ms() for one in run.steps):
        found["waterfall"] = state(draw_waterfall(run), stated)
    dials = {one.step.settings.alpha for one in run.steps if _point(one) is not None}
    if len(dials) > 1 and run.way == "sweep":
        found["front"] = state(draw_front(run), stated)
    return found


def draw_latency(run: LoadRun) -> Figure:
    """Draw latency over the rate of calls, the knee, and the predicted mean."""
    loads = sorted((one for one in run.loads if len(one.latencies_ms())), key=lambda one: one.offered_per_s)
    rates = np.array([one.offered_per_s for one in loads])
    spreads = [Distribution.of(one.latencies_ms()) for one in loads]
    with styled():
        made, axes = figure(COLUMN_INCHES, 2.7)
        for place, name in enumerate(("mean", "p50", "p95", "p99")):
            colour, marker = series(place)
            values = [getattr(one, name) for one in spreads]
            axes.plot(rates, values, marker=marker, color=colour, label=name, zorder=3)
        if run.predicted and len(rates):
            model = run.predicted[0]
            x = np.linspace(rates[0], min(rates[-1], 0.995 * model.saturation), _POINTS)
            y = np.array([model.response_ms(float(rate)) for rate in x])
            shown = y <= max(one.p99 for one in spreads)
            if shown.any():
                axes.plot(
                    x[shown], y[shown], "--", color=INK, linewidth=1.0, label="mean, predicted", zorder=2
                )
        if run.knee is not None and run.knee.reached:
            if not math.isnan(run.knee.low):
                axes.axvspan(run.knee.low, run.knee.high, color=FAINT, zorder=0)
            axes.axvline(run.knee.rate, color=SECOND, linewidth=1.0, label="knee", zorder=1)
            axes.axhline(FACTOR * run.knee.idle_ms, color=SECOND, linewidth=0.6, linestyle=":", zorder=1)
        axes.set_yscale("log")
        axes.set_xlim(left=0)
        axes.yaxis.set_minor_formatter("")
        finish(made, axes, x="calls due per second", y="latency, ms", numbers="xy")
    return made


def draw_waterfall(run: LoadRun) -> Figure:
    """Draw a bar for each load, with its stages in the order they run."""
    steps = [one for one in run.steps if one.stages_ms() and len(one.latencies_ms())]
    names, parts = _parts(steps)
    order = sorted(names, key=lambda name: _STAGES.index(name) if name in _STAGES else len(_STAGES) - 1)
    with styled():
        made, axes = figure(COLUMN_INCHES, 0.9 + 0.22 * len(steps))
        places = np.arange(len(steps))
        begin = np.zeros(len(steps))
        for place, name in enumerate(order):
            widths = np.array([part.get(name, 0.0) for part in parts])
            colour = SECOND if name == "rest" else series(place)[0]
            axes.barh(places, widths, 0.7, left=begin, color=colour, label=name)
            begin = begin + widths
        labels = [one.step.name if run.way == "sweep" else load_name(one) for one in steps]
        axes.set_yticks(places, labels)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(steps) - 0.4, -0.6)
        axes.set_xlim(left=0)
        finish(made, axes, x="milliseconds, mean", numbers="x", columns=4)
    return made


def draw_front(run: LoadRun) -> Figure:
    """Draw the settings of a sweep: disparity over utility, latency as size, the Pareto front filled."""
    points = [(one, point) for one in run.steps if (point := _point(one)) is not None]
    values = np.array([point for _, point in points])
    front = set(pareto_front(values * np.array([1.0, -1.0, 1.0])))
    slowest = values[:, 2].max()
    with styled():
        made, axes = figure(COLUMN_INCHES, 3.2)
        for place, (disparity, utility, latency) in enumerate(values):
            size = 3.0 + 9.0 * math.sqrt(latency / slowest)
            colour = series(0)[0]
            axes.plot(
                disparity,
                utility,
                "o",
                color=colour,
                markersize=size,
                alpha=0.75,
                markerfacecolor=colour if place in front else "white",
                zorder=3,
            )
        fast = sorted(front, key=lambda place: values[place, 0])
        axes.plot(values[fast, 0], values[fast, 1], color=FAINT, zorder=1)
        for place, label in ((True, "Pareto front"), (False, "dominated")):
            face = series(0)[0] if place else "white"
            axes.plot([], [], "o", color=series(0)[0], markerfacecolor=face, label=label)
        axes.margins(x=0.5, y=0.15)
        finish(made, axes, x="disparity: EE-D, of its bound", y="expected utility", numbers="xy")
        names = [
            (values[place, 0], values[place, 1], f"{_short(points[place][0])}: {values[place, 2]:.0f} ms")
            for place in [*fast, *(set(range(len(points))) - front)]
        ]
        name_points(made, axes, names)
    return made


def _short(measured: StepResult) -> str:
    """Return a short name of a setting."""
    return measured.step.name.replace("alpha=none", "no α").replace("alpha=", "α ")


def _parts(steps: list[StepResult]) -> tuple[list[str], list[dict[str, float]]]:
    """Return the names of stages, and the mean milliseconds of each in each step."""
    parts = []
    for one in steps:
        part = {"sent late": Distribution.of(one.late_ms()).mean}
        part |= {name: Distribution.of(values).mean for name, values in one.stages_ms().items()}
        known = {name: value for name, value in part.items() if not math.isnan(value)}
        known["rest"] = max(0.0, Distribution.of(one.latencies_ms()).mean - sum(known.values()))
        parts.append(known)
    return list(dict.fromkeys(name for part in parts for name in part)), parts


def _point(measured: StepResult) -> tuple[float, float, float] | None:
    """Return normalised EE-D, expected utility and mean latency; None unless all are known."""
    found = measured.quantities()
    if "ee_d_norm" not in found or "expected_utility" not in found:
        return None
    point = (
        Distribution.of(found["ee_d_norm"]).mean,
        Distribution.of(found["expected_utility"]).mean,
        Distribution.of(measured.latencies_ms()).mean,
    )
    return None if any(math.isnan(value) for value in point) else point
