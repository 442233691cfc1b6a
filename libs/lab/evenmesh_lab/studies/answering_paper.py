"""The answering study as Yu et al. 2024 print it: shares in per cent, systems down, data sets across."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from evenmesh_core.intervals import BootstrapInterval
from evenmesh_lab.studies.answering import DEPTHS, MEASURES, AnsweringStudy, AnswerSummary
from evenmesh_lab.studies.tables import Cell, Table, text

_MAIN: Final = ("exact_match", "accuracy")
"""Main measures of answers: the first that is defined counts."""


def paper_tables(study: AnsweringStudy) -> tuple[Table, ...]:
    """Return the paper's tables 2, 3 and 9 (answers), 5 (multiple choice), 6 and 8 (answer recall).

    Time against exact match (figure 5) follows. Tables without rows are left out.
    """
    return tuple(table for table in _tables(study) if table.rows)


def _tables(study: AnsweringStudy) -> Iterable[Table]:
    open_ = [one for one in study.summaries if "exact_match" in one.means]
    yield _grid(
        "paper-answers",
        "Answers: EM / F1 / accuracy (as Yu et al. 2024, tables 2, 3 and 9)",
        study,
        open_,
        ("exact_match", "token_f1", "accuracy"),
    )
    # MIRAGE's data sets are the parts of one file.
    parts = {one.dataset.rpartition("/")[0] for one in study.groups}
    chosen = [
        one
        for one in (*study.groups, *(one for one in study.summaries if one.dataset not in parts))
        if "exact_match" not in one.means and "accuracy" in one.means
    ]
    yield _grid(
        "paper-choices",
        "Multiple choice: accuracy (as Yu et al. 2024, table 5)",
        study,
        chosen,
        ("accuracy",),
    )
    yield _recall(study)
    yield _cost(study)


def _grid(
    name: str,
    title: str,
    study: AnsweringStudy,
    summaries: Sequence[AnswerSummary],
    measures: Sequence[str],
) -> Table:
    datasets = list(dict.fromkeys(one.dataset for one in summaries))
    by = {(one.system, one.dataset): one for one in summaries}
    columns = [
        (dataset, measure)
        for dataset in datasets
        for measure in measures
        if any(measure in one.means for one in summaries if one.dataset == dataset)
    ]
    rows: list[tuple[Cell, ...]] = []
    for system in dict.fromkeys(one.system for one in summaries):
        cells: list[Cell] = [system]
        for dataset, measure in columns:
            found = by.get((system, dataset))
            cells.append(None if found is None else percent(found.means.get(measure)))
        if len(datasets) > 1:
            cells.append(_average([by.get((system, dataset)) for dataset in datasets], measures[0]))
        rows.append(tuple(cells))
    average = [text("average", "Avg.")] if len(datasets) > 1 else []
    counts = {one.dataset: one.questions for one in summaries}
    return Table(
        name,
        title,
        (
            text("system", "system"),
            *(text(f"{dataset}_{measure}", f"{dataset} {MEASURES[measure]}") for dataset, measure in columns),
            *average,
        ),
        tuple(rows),
        note=f"Per cent, {study.bootstrap.level:.0%} intervals. Questions: "
        + ", ".join(f"{dataset} {count:,}" for dataset, count in counts.items())
        + (f". Avg.: mean of {MEASURES[measures[0]]} over the data sets." if average else "."),
    )


def _recall(study: AnsweringStudy) -> Table:
    mine = [one for one in study.recalls if one.kind == "answer"]
    columns = [
        (dataset, depth)
        for dataset in study.datasets
        for depth in DEPTHS
        if any(one.dataset == dataset and one.depth == depth for one in mine)
    ]
    by = {(one.system, one.dataset, one.depth): one for one in mine}
    rows: list[tuple[Cell, ...]] = []
    for system in dict.fromkeys(one.system for one in mine):
        after = tuple(
            None if (one := by.get((system, *column))) is None else percent(one.after) for column in columns
        )
        rows.append((system, *after))
    return Table(
        "paper-recall",
        "Answer recall as retrieved and after ranking (as Yu et al. 2024, tables 6 and 8)",
        (
            text("ranking", "ranking"),
            *(text(f"{dataset}_r{depth}", f"{dataset} R@{depth}") for dataset, depth in columns),
        ),
        tuple(rows),
        note="Per cent. Without a reranker: as retrieved.",
    )


def _cost(study: AnsweringStudy) -> Table:
    by = {system: [one for one in study.summaries if one.system == system] for system in study.configurations}
    rows: list[tuple[Cell, ...]] = []
    for one in study.times:
        configuration = study.configurations[one.system]
        shares = []
        for summary in by[one.system]:
            found = next((summary.means[name] for name in _MAIN if name in summary.means), None)
            shares.append(percent(found))
        rows.append((one.system, configuration.n, configuration.k, one.overhead, " / ".join(shares)))
    return Table(
        "paper-cost",
        "Time against answers (as Yu et al. 2024, figure 5)",
        (
            text("system", "system"),
            text("n", "N"),
            text("k", "k"),
            text("overhead", "time, of generation alone"),
            text("answers", " / ".join(study.datasets)),
        ),
        tuple(tuple(f"{cell:.2f}" if isinstance(cell, float) else cell for cell in row) for row in rows),
        note="Answers: EM, of multiple choice accuracy, in per cent.",
    )


def percent(interval: BootstrapInterval | None) -> str:
    """Return a share in per cent with one decimal, its interval in brackets; a dash where undefined."""
    if interval is None or math.isnan(interval.value):
        return "–"
    shown = f"{100 * interval.value:.1f}"
    if not math.isnan(interval.low):
        shown += f" [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"
    return shown


def _average(found: Sequence[AnswerSummary | None], measure: str) -> str:
    values = [
        one.means[measure].value if one is not None and measure in one.means else math.nan for one in found
    ]
    mean = sum(values) / len(values)
    return "–" if math.isnan(mean) else f"{100 * mean:.1f}"
