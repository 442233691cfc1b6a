"""What an evaluation found, from its records: tables, figures and one page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from raglab import reports
from raglab.figures import save
from raglab.figures.answering import answering_figures
from raglab.files.answered import read_answered, read_times
from raglab.reports.markdown import as_markdown
from raglab.studies import Bootstrap
from raglab.studies.answering import AnsweringStudy, measure
from raglab.studies.answering_paper import paper_tables
from ragmesh.rag_eval.driver import RECORDS, TIMES

PAGE: Final = "report.html"
MARKDOWN: Final = "report.md"
MOST_LINES: Final = 6
"""What fits above a figure."""


def study(folder: Path, *, abstention: str, bootstrap: Bootstrap) -> AnsweringStudy:
    """Measures the records of a run.

    Raises:
        FileError: a file is at fault.
    """
    return measure(
        read_answered(folder / RECORDS),
        read_times(folder / TIMES),
        abstention=abstention,
        bootstrap=bootstrap,
    )


def write(found: AnsweringStudy, facts: Sequence[tuple[str, str]], folder: Path) -> list[Path]:
    """Writes tables as Markdown and CSV, figures as SVG and PNG, and one page of everything.

    Args:
        found: what is written.
        facts: what it is about: names and values.
        folder: where to; made if it is not there.

    Returns:
        The files, the page first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables, paper = found.tables(), paper_tables(found)
    drawn = answering_figures(found, _note(facts))
    written = []
    for name, figure in drawn.items():
        for ending in ("svg", "png"):
            target = folder / f"{name}.{ending}"
            save(figure, target)
            written.append(target)
    written.extend(reports.write_csv(tables, folder / "answers.csv"))
    markdown = folder / MARKDOWN
    markdown.write_text(_markdown(found, facts, drawn), encoding="utf-8")
    page = folder / PAGE
    sections = [
        reports.Section("Findings", [*paper, *tables[:-1]], drawn),
        reports.Section("Details", tables[-1:]),
    ]
    page.write_text(
        reports.page(reports.Report("Retrieve, rerank, answer", facts, sections)), encoding="utf-8"
    )
    return [page, markdown, *written]


def _note(facts: Sequence[tuple[str, str]]) -> str:
    """What a figure says of what it stands on: seeds and versions."""
    seeds = [f"seeds: {value}" for name, value in facts if name == "seeds"]
    versions = [f"{name.removeprefix('version of ')} {value}" for name, value in facts if "version" in name]
    return "\n".join([*seeds, *versions][:MOST_LINES])


def _markdown(found: AnsweringStudy, facts: Sequence[tuple[str, str]], drawn: Mapping[str, object]) -> str:
    """The paper's tables, then ours; the questions' rows are in the CSV file."""
    head = ["# Retrieve, rerank, answer", "", *(f"- {name}: {value}" for name, value in facts), ""]
    figures = [f"![{reports.caption(name)}]({name}.svg)\n" for name in drawn]
    tables = [*paper_tables(found), *found.tables()[:-1]]
    return "\n".join([*head, *figures, as_markdown(tables)])
