"""Measure the records of an evaluation and write the report."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from evenmesh_lab.figures.answering import answering_figures
from evenmesh_lab.files.answered import AnsweredRecord, TimesRecord, read_all
from evenmesh_lab.studies import Bootstrap
from evenmesh_lab.studies.answering import AnsweringStudy, measure
from evenmesh_lab.studies.answering_paper import paper_tables
from evenmesh_lab.studies.overlap import Overlap
from evenmesh_lab.studies.tables import Table
from evenmesh_studies.answering.plan import RECORDS, TIMES
from evenmesh_studies.runner.report import ReportSection, overlap_section, write_report
from evenmesh_studies.runner.shards import records_file

_MOST_LINES: Final = 6
"""Lines that fit above a figure."""

Key = tuple[str, str]
"""A question: its data set and its id."""


def study(
    folder: Path, *, abstention: str, bootstrap: Bootstrap, only: Collection[Key] | None = None
) -> AnsweringStudy:
    """Measure the records of a run.

    Args:
        folder: of the run.
        only: questions to measure; None for all.
        abstention: answer of a model that finds none in the passages.
        bootstrap: how intervals are computed.

    Raises:
        FileError: a file cannot be read.
    """
    answers = read_all(folder / records_file(RECORDS), AnsweredRecord)
    times = read_all(folder / records_file(TIMES), TimesRecord)
    return measure(
        [one for one in answers if only is None or (one.dataset, one.query_id) in only],
        [one for one in times if only is None or (one.dataset, one.query_id) in only],
        abstention=abstention,
        bootstrap=bootstrap,
    )


def write(
    found: AnsweringStudy,
    facts: Sequence[tuple[str, str]],
    folder: Path,
    *,
    overlap: Overlap[Key] | None = None,
    parts: Sequence[tuple[str, AnsweringStudy]] = (),
) -> list[Path]:
    """Write the report: the paper's tables, then ours.

    Args:
        found: of the records.
        facts: what the report is about: names and values.
        folder: where to; made if needed.
        overlap: of the questions with the models' training; None leaves it out.
        parts: names and results of the questions to report apart, first of all.

    Returns:
        The files, the page first.
    """
    seeds = [f"seeds: {value}" for name, value in facts if name == "seeds"]
    versions = [f"{name.removeprefix('version of ')} {value}" for name, value in facts if "version" in name]
    stated = "\n".join([*seeds, *versions][:_MOST_LINES])
    sections = [] if overlap is None else [overlap_section(overlap)]
    csv: dict[str, tuple[Table, ...]] = {} if overlap is None else {"overlap.csv": (overlap.table(),)}
    for name, part in (*parts, ("", found)):
        *tables, details = part.tables()
        of = f"{name or 'all'} questions"
        sections.append(
            ReportSection(
                f"Findings, {of}" if parts else "Findings",
                [*paper_tables(part), *tables],
                answering_figures(part, f"{of}\n{stated}" if parts else stated),
                details=[details],
                prefix=f"{name}-" if name else "",
            )
        )
        csv[f"answers-{name}.csv" if name else "answers.csv"] = part.tables()
    return write_report(folder, "Retrieve, rerank, answer", facts, sections, csv)
