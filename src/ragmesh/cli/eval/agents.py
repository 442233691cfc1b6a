"""``ragmesh eval agents``: what a search engine that learns from agents is worth to them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ragmesh.cli.eval import options
from ragmesh.cli.eval.outputs import reported, show
from ragmesh.cli.failure import USAGE, CommandError
from ragmesh.cli.screen import Screen

if TYPE_CHECKING:
    from raglab.studies.agents import AgentsStudy
    from raglab.studies.tables import Table

TITLE: Final = "A search engine for agents"

_FILES_ONLY: Final = ("comparisons", "queries")


def agents(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS…",
            help="Records of runs, .jsonl or .parquet, or folders of runs; of several seeds or systems.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the report goes.")],
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Of the online system in the table.  [default: 256, or the only one]"),
    ] = None,
    depth: Annotated[int, typer.Option(min=1, help="Passages of a list compared between agents.")] = 10,
    level: options.Level = 0.95,
    interval: options.Method = "bca",
    resamples: options.Resamples = 2000,
    seed: options.Seed = 0,
) -> None:
    """Compare ways of ranking by their worth to agents.

    Tables and figures are the IUM paper's.

    Systems by agent with McNemar's test, rounds with and without personalisation, batch sizes, streams, and
    how alike the lists of two agents are. Writes report.md, report.html, CSV files and PNG figures.
    """
    screen = Screen()
    with reported():
        from raglab.files.agent_runs import read_agent_runs
        from raglab.studies.agents import measure
        from raglab.studies.agents_tables import sentences, tables

        if out.exists() and not out.is_dir():
            raise CommandError(f"--out {out} is a file; name a folder", USAGE)
        files = [_file(path) for path in runs]
        study = measure(
            read_agent_runs(files),
            batch_size=batch_size,
            depth=depth,
            bootstrap=options.bootstrap(level, resamples, seed, interval),
        )
        found, told = tables(study), sentences(study)
        show(screen, [table for table in found if table.name not in _FILES_ONLY])
        for sentence in told:
            screen.line(sentence)
        for path in _written(study, found, told, files, out):
            screen.note(f"wrote {path}")


def _file(path: Path) -> Path:
    """The file of records: the path itself, or that of a folder of a run."""
    if not path.is_dir():
        return path
    for name in ("runs.parquet", "runs.jsonl.gz", "runs.jsonl"):
        if (path / name).is_file():
            return path / name
    raise CommandError(f"{path} holds no runs.jsonl, runs.jsonl.gz or runs.parquet")


def _written(
    study: "AgentsStudy", tables: "Sequence[Table]", told: Sequence[str], files: Sequence[Path], out: Path
) -> list[Path]:
    from raglab import reports
    from raglab.figures import save
    from raglab.figures.agents import agents_figures
    from raglab.reports.markdown import as_markdown

    figures = agents_figures(study)
    out.mkdir(parents=True, exist_ok=True)
    written = reports.write_csv(tuple(tables), out / "agents.csv")
    for name, figure in figures.items():
        save(figure, out / f"{name}.png")
        written.append(out / f"{name}.png")
    lines = [f"# {TITLE}", "", f"{study.statement()}.", "", *(f"- {one}" for one in told), ""]
    for name in figures:
        told_of = reports.caption(name)
        lines += [f"![{told_of}]({name}.png)", "", told_of, ""]
    markdown = out / "report.md"
    markdown.write_text("\n".join(lines) + as_markdown(tables[:-1]), encoding="utf-8")
    page = out / "report.html"
    page.write_text(
        reports.page(
            reports.Report(
                TITLE,
                [
                    ("runs", ", ".join(str(path) for path in files)),
                    ("agents", ", ".join(study.agents)),
                    ("stands on", study.statement()),
                ],
                [
                    reports.Section("Findings", tables[:2], figures, told),
                    reports.Section("Details", tables[2:]),
                ],
            )
        ),
        encoding="utf-8",
    )
    return [*written, markdown, page]
