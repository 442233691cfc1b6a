"""Write the report of a study: tables as CSV, figures as SVG and PNG, all of it as Markdown and HTML."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from evenmesh_lab import figures, reports
from evenmesh_lab.reports.markdown import as_markdown
from evenmesh_lab.studies.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class ReportSection:
    """One part of a report.

    Attributes:
        title: its heading.
        tables: shown on the page and in Markdown.
        figures: by name.
        notes: sentences.
        details: tables that stand on the page alone, under "Details".
        prefix: begins the names of the figures' files.
    """

    title: str
    tables: Sequence[Table] = ()
    figures: Mapping[str, "Figure"] = field(default_factory=dict)
    notes: Sequence[str] = ()
    details: Sequence[Table] = ()
    prefix: str = ""


def write_report(
    folder: Path,
    title: str,
    facts: Sequence[tuple[str, str]],
    sections: Sequence[ReportSection],
    csv: Mapping[str, Sequence[Table]],
    *,
    figure_formats: Sequence[str] = ("svg", "png"),
) -> list[Path]:
    """Write a report into a folder, which is made if needed.

    Args:
        folder: where to.
        title: of the report.
        facts: what it is about: names and values.
        sections: in order.
        csv: tables by the name of their CSV file.
        figure_formats: endings of the figures' files, the PNG one among them.

    Returns:
        The files, ``report.html`` first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = [
        path for name, tables in csv.items() for path in reports.write_csv(tuple(tables), folder / name)
    ]
    text = [f"# {title}", "", *(f"- {name}: {value}" for name, value in facts), ""]
    shown = []
    for one in sections:
        text += [f"## {one.title}", "", *(f"- {note}" for note in one.notes), ""]
        text.append(as_markdown(one.tables, level=3))
        drawn: dict[str, bytes] = {}  # drawing takes most of the time, so the page shows what the files hold
        for name, figure in one.figures.items():
            for ending in figure_formats:
                written.append(folder / f"{one.prefix}{name}.{ending}")
                figures.save(figure, written[-1])
                if ending == "svg":
                    drawn[name] = written[-1].read_bytes()
            caption = reports.caption(name)
            text += [f"![{caption}]({one.prefix}{name}.png)", "", caption, ""]
        shown.append(reports.Section(one.title, one.tables, one.figures, one.notes, drawn))
        if one.details:
            shown.append(reports.Section("Details", one.details))
    markdown, page = folder / "report.md", folder / "report.html"
    markdown.write_text("\n".join(text), encoding="utf-8")
    page.write_text(reports.page(reports.Report(title, facts, shown)), encoding="utf-8")
    return [page, markdown, *written]


def with_statement(tables: Sequence[Table], *statements: str) -> list[Table]:
    """Return tables with statements added to their notes; empty statements are left out."""
    text = "; ".join(one for one in statements if one)
    return [replace(table, note=f"{table.note} {text}.".strip()) for table in tables]


def program() -> str:
    """Return name and version of this program."""
    return f"evenmesh {version('evenmesh')}"


def provenance(facts: Mapping[str, str]) -> list[str]:
    """Return models and rerankers with their versions, each once.

    Args:
        facts: of a run's journal; those named ``version of …`` and ``reranker of …`` count.
    """
    versions = [f"{name.removeprefix('version of ')} {facts[name]}" for name in facts if "version of" in name]
    rerankers = [value for name, value in facts.items() if name.startswith("reranker of ")]
    return list(dict.fromkeys([*versions, *(one for one in rerankers if one not in ("", "none"))]))


def journal_facts(facts: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the facts of a run's journal for a report, ascending by name."""
    return [(name, value or "–") for name, value in sorted(facts.items())]
