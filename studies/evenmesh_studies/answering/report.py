"""Measure the records of an evaluation and write the report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from evenmesh_lab.figures.answering import answering_figures
from evenmesh_lab.files.answered import AnsweredRecord, TimesRecord, read_all
from evenmesh_lab.studies import Bootstrap
from evenmesh_lab.studies.answering import AnsweringStudy, measure
from evenmesh_lab.studies.answering_paper import paper_tables
from evenmesh_studies.answering.plan import RECORDS, TIMES
from evenmesh_studies.runner.report import ReportSection, write_report
from evenmesh_studies.runner.shards import records_file

_MOST_LINES: Final = 6
"""Lines that fit above a figure."""


def study(folder: Path, *, abstention: str, bootstrap: Bootstrap) -> AnsweringStudy:
    """Measure the records of a run.

    Args:
        folder: of the run.
        abstention: answer of a model that finds none in the passages.
        bootstrap: how intervals are computed.

    Raises:
        FileError: a file cannot be read.
    """
    return measure(
        read_all(folder / records_file(RECORDS), AnsweredRecord),
        read_all(folder / records_file(TIMES), TimesRecord),
        abstention=abstention,
        bootstrap=bootstrap,
    )


def write(found: AnsweringStudy, facts: Sequence[tuple[str, str]], folder: Path) -> list[Path]:
    """Write the report: the paper's tables, then ours.

    Args:
        found: of the records.
        facts: what the report is about: names and values.
        folder: where to; made if needed.

    Returns:
        The files, the page first.
    """
    *tables, details = found.tables()
    seeds = [f"seeds: {value}" for name, value in facts if name == "seeds"]
    versions = [f"{name.removeprefix('version of ')} {value}" for name, value in facts if "version" in name]
    stated = "\n".join([*seeds, *versions][:_MOST_LINES])
    section = ReportSection(
        "Findings",
        [*paper_tables(found), *tables],
        answering_figures(found, stated),
        details=[details],
    )
    return write_report(folder, "Retrieve, rerank, answer", facts, [section], {"answers.csv": found.tables()})
