"""``evenmesh eval agents``: measure what a search engine that learns from agents is worth to them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from evenmesh.commands.failure import USAGE, CommandError
from evenmesh.commands.option_groups import with_groups
from evenmesh.commands.screen import Screen
from evenmesh_studies.commands.eval import options
from evenmesh_studies.commands.eval.outputs import reported, show

if TYPE_CHECKING:
    from evenmesh_lab.studies.agents import AgentsStudy
    from evenmesh_lab.studies.tables import Table

TITLE: Final = "A search engine for agents"

_FILES_ONLY: Final = ("comparisons", "queries")


@with_groups
def agents(
    *,
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS…",
            help="Records of runs, .jsonl or .parquet, or folders of runs; of several seeds or systems.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder of the report.")],
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Batch size of the table's online system.  [default: 256, or the only one]"),
    ] = None,
    depth: Annotated[int, typer.Option(min=1, help="Depth at which lists of agents are compared.")] = 10,
    intervals: options.Intervals,
) -> None:
    """Compare ranking systems by their utility to agents.

    Make the tables and figures of the IUM paper: systems by agent with McNemar's test, rounds with and
    without personalisation, batch sizes, streams, and the lists of two agents. Write report.md, report.html,
    CSV files and figures.
    """
    screen = Screen()
    with reported():
        from evenmesh_lab.files.agent_runs import read_agent_runs
        from evenmesh_lab.studies.agents import measure
        from evenmesh_lab.studies.agents_tables import sentences, tables

        if out.exists() and not out.is_dir():
            raise CommandError(f"--out {out} is a file; name a folder", USAGE)
        files = [_file(path) for path in runs]
        study = measure(
            read_agent_runs(files),
            batch_size=batch_size,
            depth=depth,
            bootstrap=intervals.bootstrap(),
        )
        found, findings = tables(study), sentences(study)
        show(screen, [table for table in found if table.name not in _FILES_ONLY])
        for sentence in findings:
            screen.line(sentence)
        for path in _write_report(study, found, findings, files, out):
            screen.note(f"wrote {path}")


def _file(path: Path) -> Path:
    """Return the file of records: the path itself, or the file in a run's folder."""
    if not path.is_dir():
        return path
    for name in ("runs.parquet", "runs.jsonl.gz", "runs.jsonl"):
        if (path / name).is_file():
            return path / name
    raise CommandError(f"{path} holds no runs.jsonl, runs.jsonl.gz or runs.parquet")


def _write_report(
    study: "AgentsStudy",
    tables: "Sequence[Table]",
    findings: Sequence[str],
    files: Sequence[Path],
    out: Path,
) -> list[Path]:
    from evenmesh_lab.figures.agents import agents_figures
    from evenmesh_studies.runner.report import ReportSection, write_report

    facts = [
        ("runs", ", ".join(str(path) for path in files)),
        ("agents", ", ".join(study.agents)),
        ("based on", study.statement()),
    ]
    sections = [
        ReportSection("Findings", tables[:2], agents_figures(study), findings),
        ReportSection("Details", tables[2:-1], details=tables[-1:]),
    ]
    return write_report(out, TITLE, facts, sections, {"agents.csv": tables}, figure_formats=("png",))
