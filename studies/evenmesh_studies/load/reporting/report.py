"""Write a run as JSON, Markdown and figures."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from evenmesh_lab.figures import save
from evenmesh_lab.reports import as_markdown
from evenmesh_studies.load.analysis.histograms import Histogram
from evenmesh_studies.load.analysis.prediction import off_by
from evenmesh_studies.load.reporting.figures import CAPTIONS, run_figures
from evenmesh_studies.load.reporting.tables import run_tables
from evenmesh_studies.load.run import LoadRun, bottleneck_of
from evenmesh_studies.load.step import Distribution, Slo, StepResult

VERSION: Final = 1
"""Version of the JSON report's format."""


def write_report(run: LoadRun, folder: Path) -> list[Path]:
    """Write ``report.json``, ``report.md`` and figures. Reports are replaced atomically.

    Returns:
        The files.

    Raises:
        OSError: one cannot be written.
    """
    figures = run_figures(run)
    written = []
    for name, figure in figures.items():
        path = folder / f"{name}.png"
        save(figure, path)
        written.append(path)
    for name, text in (
        ("report.json", json.dumps(as_json(run), indent=1, ensure_ascii=False, allow_nan=False) + "\n"),
        ("report.md", as_text(run, list(figures))),
    ):
        new = folder / f"{name}.new"
        new.write_text(text, encoding="utf-8")
        new.replace(folder / name)
        written.append(folder / name)
    return written


def as_text(run: LoadRun, figures: list[str]) -> str:
    """Return the report as Markdown; figures lie beside it."""
    lines = [f"# Load test: {run.settings.operation}", ""]
    if run.interrupted:
        lines += ["**The run was stopped early; this is what it measured.**", ""]
    lines += [f"- {name}: {value}" for name, value in run.facts.items()]
    lines += ["", summary(run), ""]
    for name in figures:
        lines += [f"![{name}]({name}.png)", "", CAPTIONS[name], ""]
    return "\n".join(lines) + "\n" + as_markdown(list(run_tables(run)))


def summary(run: LoadRun) -> str:
    """Return the findings of a run in a few sentences."""
    said = []
    if run.knee is not None:
        knee = run.knee
        if not knee.reached:
            said.append(f"No load was too much: the knee is above {knee.rate:.3g} calls per second.")
        else:
            span = "" if math.isnan(knee.low) else f" [{knee.low:.3g}, {knee.high:.3g}]"
            said.append(f"The knee is at {knee.rate:.3g}{span} calls per second.")
            if run.predicted:
                first = run.predicted[0]
                off = off_by(first.knee, knee.rate)
                said.append(f"Predicted ({first.model}): {first.knee:.3g}, {off:+.0%}.")
    if run.steps:
        who = [bottleneck_of(run, one)[0] for one in run.steps]
        worst = bottleneck_of(run, run.steps[-1])
        if "client" in who:
            said.append("The client delayed calls in some steps: their latencies are not the mesh's.")
        if "neighbours" in who:
            count = who.count("neighbours")
            said.append(f"In {count} of {len(who)} steps others used this machine: do not rely on them.")
        said.append(f"The last step's bottleneck: {worst[0]} ({worst[1]}).")
    return " ".join(said) or "Nothing was measured."


def as_json(run: LoadRun) -> dict[str, Any]:
    """Return all of a run as JSON values; undefined numbers are None."""
    knee = None if run.knee is None else asdict(run.knee)
    found = {
        "version": VERSION,
        "way": run.way,
        "interrupted": run.interrupted,
        "facts": dict(run.facts),
        "settings": run.settings.as_dict(),
        "slo": None if run.slo is None else asdict(run.slo),
        "knee": knee,
        "slo_rate": run.slo_rate,
        "service_times": None if run.times is None else asdict(run.times),
        "predicted": [
            {
                "model": one.model,
                "knee": one.knee,
                "saturation": one.saturation,
                "off": off_by(one.knee, run.knee.rate) if run.knee is not None and run.knee.reached else None,
            }
            for one in run.predicted
        ],
        "steps": [_step(run, one, run.slo) for one in run.steps],
    }
    plain: dict[str, Any] = _plain(found)
    return plain


def _step(run: LoadRun, one: StepResult, slo: Slo | None) -> dict[str, Any]:
    who, why = bottleneck_of(run, one)
    first, latency = Distribution.of(one.first_ms()), one.latencies_ms()
    step = asdict(one.step)
    step["arrivals"] = len(one.step.arrivals)
    return {
        **step,
        "interrupted": one.interrupted,
        "calls": len(one.counted),
        "offered_per_s": one.offered_per_s,
        "completed_per_s": one.completed_per_s,
        "kept_up": one.kept_up,
        "goodput_per_s": None if slo is None else one.goodput_per_s(slo),
        "good_share": None if slo is None else one.good_share(slo),
        "codes": one.codes(),
        "degraded": one.degraded(),
        "latency_ms": asdict(Distribution.of(latency)) | {"hdr": Histogram.of(latency).encoded()},
        "first_text_ms": asdict(first),
        "between_ms": {
            "count": one.gaps.count,
            "mean": one.gaps.mean,
            **dict(zip(("p50", "p95", "p99"), one.gaps.percentiles([50, 95, 99]), strict=True)),
            "hdr": one.gaps.encoded(),
        },
        "stages_ms": {name: asdict(Distribution.of(values)) for name, values in one.stages_ms().items()},
        "quantities": {name: asdict(Distribution.of(values)) for name, values in one.quantities().items()},
        "late_ms": asdict(Distribution.of(one.late_ms())),
        "lag_ms": asdict(one.lags),
        "elapsed_s": one.elapsed_s,
        "client_cpu_s": one.client_cpu_s,
        "processes": one.processes,
        "usage": asdict(one.usage),
        "bottleneck": {"who": who, "why": why},
    }


def _plain(value: object) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value
