"""The tables of docs/studies/over-time.md, from the numbers beside it; a test compares them with the page.

``python -m benchmarks.over_time.tables`` writes them into the page, and draws the figures of answers.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from benchmarks.over_time.drawing import draw
from benchmarks.over_time.stream import ASKS, OUT
from benchmarks.page import fill
from benchmarks.study_pages.cells import plan_of
from evenmesh_core.intervals import BootstrapInterval, student_interval
from evenmesh_core.sparse_means import difference_interval

GOAL: Final = 0.05
"""Largest unfairness by 1,000 asks that the study looks for."""


def simulated(name: str, report: dict[str, Any]) -> str:
    """Return what each policy did on a set."""
    lines = [
        f"{report['questions']:,} questions, {report['providers']} providers ({report['provider']}).",
        "",
        f"![Utility over unfairness: {name}](over-time/{name}.svg)",
        "",
        "| policy | setting | utility | disparity | relevance given up | unfairness after 1,000 "
        "| after 5,000 | utility beside the dial of equal disparity |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in report["outcomes"]:
        beside = one["beside"]
        interval = f"{one['utility']:.3f} ({one['low']:.3f} to {one['high']:.3f})"
        lines.append(
            f"| {one['policy']} | {one['setting']:g} | {interval} "
            f"| {one['disparity']:.3f} | {one['loss'][0]:.3f} | {one['unfairness'][0]:.3f} "
            f"| {one['unfairness'][-1]:.3f} | {_beside(beside) if beside else ''} |"
        )
    return "\n".join(lines)


def reached(reports: dict[str, Any]) -> str:
    """Return for each set the weakest controller that is within the goal by 1,000 asks, or the strongest."""
    lines = [
        "| set | strength | unfairness | largest of one provider | relevance given up | utility given up "
        "| nearest at 0.02 of relevance | at 0.02 of utility | at any price |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, report in reports.items():
        controllers = [one for one in report["outcomes"] if one["policy"] == "controller"]
        sharp = next(one for one in report["outcomes"] if (one["policy"], one["setting"]) == ("dial", 100))
        one = next((one for one in controllers if one["unfairness"][0] <= GOAL), controllers[-1])
        first, free = (one for one in report["bounds"] if one["asks"] == 1_000)
        lines.append(
            f"| {name} | {one['setting']:g} | {one['unfairness'][0]:.3f} | {one['largest'][0]:.3f} "
            f"| {one['loss'][0]:.3f} | {_signed(1 - one['utility'] / sharp['utility'])} "
            f"| {first['relevance']:.3f} | {first['utility']:.3f} | {free['relevance']:.3f} |"
        )
    return "\n".join(lines)


def answered(rows: Sequence[dict[str, str]], outcomes: Sequence[dict[str, Any]]) -> str:
    """Return the utility of answers of each policy, and its difference from the dial of equal disparity."""
    scores = by_policy(rows)
    lines = [
        "| policy | setting | disparity | unfairness | exact match | F1 | α of equal disparity "
        "| F1 minus that of the dial | exact match minus that of the dial |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in outcomes:
        if one["beside"]:
            continue
        name = f"{one['policy']} {one['setting']:g}"
        mine = scores[name]
        cells = ["", "", ""]
        other = next((dial for dial in outcomes if dial["beside"] == name), None)
        if other is not None:
            dial = scores[f"dial {other['setting']:g}"]
            cells = [
                f"{other['setting']:g}",
                _difference(mine["f1"] - dial["f1"]),
                _difference(mine["exact_match"] - dial["exact_match"]),
            ]
        em, f1 = student_interval(mine["exact_match"]), student_interval(mine["f1"])
        lines.append(
            f"| {one['policy']} | {one['setting']:g} | {one['disparity']:.3f} | {one['unfairness']:.3f} "
            f"| {em.value:.3f} | {_interval(f1)} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def by_policy(rows: Sequence[dict[str, str]]) -> dict[str, dict[str, Any]]:
    """Return the measures of each policy, a vector [questions] each, the questions in one order."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for measure in ("exact_match", "f1", "useful"):
            found[f"{row['policy']} {float(row['setting']):g}"][measure].append(float(row[measure]))
    return {
        name: {measure: np.array(values) for measure, values in one.items()} for name, one in found.items()
    }


def read_answers() -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    """Return the rows of answers.csv, and what came of the policies."""
    with (OUT / "answers.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file)), json.loads((OUT / "answers.json").read_text(encoding="utf-8"))


def tables() -> dict[str, str]:
    """Return every table of the page by its name there."""
    reports = json.loads((OUT / "outcomes.json").read_text(encoding="utf-8"))
    found = {"plan": plan_of(OUT), "reached": reached(reports)}
    found |= {name: simulated(name, report) for name, report in reports.items()}
    if (OUT / "answers.csv").exists():
        found["answers"] = answered(*read_answers())
    return found


def main() -> None:
    """Write the tables into the page, and draw the figures of answers."""
    fill(OUT.with_suffix(".md"), tables())
    if not (OUT / "answers.csv").exists():
        return
    rows, outcomes = read_answers()
    scores = by_policy(rows)
    for x, path, name in (
        ("disparity", "answers-disparity.svg", "disparity"),
        ("unfairness", "answers-unfairness.svg", f"unfairness after {ASKS:,} asks"),
    ):
        points: dict[str, list[tuple[float, float, float, float]]] = {}
        for one in sorted(outcomes, key=lambda one: one["setting"]):
            f1 = student_interval(scores[f"{one['policy']} {one['setting']:g}"]["f1"])
            points.setdefault(one["policy"], []).append((one[x], f1.value, f1.low, f1.high))
        draw(OUT / path, points, x=name, y="F1 of answers")


def _beside(one: dict[str, Any]) -> str:
    return f"{_signed(one['difference'])} ({_signed(one['low'])} to {_signed(one['high'])})"


def _difference(values: Any) -> str:
    found = difference_interval(values)
    if np.isnan(found.low):
        return f"{_signed(found.value)}, no interval"
    return f"{_signed(found.value)} ({_signed(found.low)} to {_signed(found.high)})"


def _interval(found: BootstrapInterval) -> str:
    return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"


def _signed(value: float) -> str:
    return f"{value:.3f}".replace("-", "−").replace("−0.000", "0.000")


if __name__ == "__main__":
    main()
