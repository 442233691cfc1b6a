"""Show and write what a study found."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from evenmesh.commands.failure import FAILED, INSTALL, USAGE, CommandError
from evenmesh.commands.screen import Screen, clean

if TYPE_CHECKING:
    from evenmesh_lab.studies import Study
    from evenmesh_lab.studies.tables import Cell, Column, Table

MANY_ROWS: Final = 40
"""Longest table shown on a terminal."""
_OPTIONAL: Final = ("matplotlib", "pyarrow", "jinja2", "hdrh", "psutil")
"""Packages that an installation without studies may lack."""
_ENDINGS: Final = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Outputs:
    """Files a study is written to, besides the terminal; the JSON file - is standard output."""

    json: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write all results as JSON; - is standard output."),
    ] = None
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a row per query as CSV, the other tables next to it."),
    ] = None
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one HTML page of all results.")] = (
        None
    )

    @property
    def figures(self) -> Path | None:
        """The file of figures; None for studies without any."""
        return None

    def check(self) -> None:
        """Check before the work that the files can be written.

        Raises:
            CommandError: a figure's ending is unknown, or a folder does not exist.
        """
        if self.figures is not None and self.figures.suffix.lower() not in _ENDINGS:
            raise CommandError(f"--plot is {str(self.figures)!r}; allowed: .png, .svg or .pdf files", USAGE)
        written = (
            None if self.json in (None, "-") else Path(str(self.json)),
            self.csv,
            self.figures,
            self.html,
        )
        for path in written:
            if path is not None and not path.absolute().parent.is_dir():
                raise CommandError(f"{path}: there is no folder {str(path.parent)!r}", USAGE)


@dataclass(frozen=True)
class DrawnOutputs(Outputs):
    """Files of a study that has figures."""

    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw figures: .png, .svg or .pdf; several get their names added."),
    ] = None

    @property
    def figures(self) -> Path | None:
        """The file of figures."""
        return self.plot


@contextmanager
def reported() -> Iterator[None]:
    """End the command with one line for errors of files and options within the block.

    Raises:
        CommandError: a file is wrong (1), an option or a model's setting is wrong (2), a package is not
            installed (1).
    """
    try:
        yield
    except ImportError as exc:
        if (exc.name or "").partition(".")[0] in _OPTIONAL:
            raise CommandError(f"this needs {exc.name}: {INSTALL}", FAILED) from exc
        raise
    except Exception as exc:
        from evenmesh_core.errors import InvalidInput
        from evenmesh_lab.files import FileError
        from evenmesh_lab.similarities import MissingModel

        if isinstance(exc, FileError):
            raise CommandError(str(exc), FAILED) from exc
        if isinstance(exc, InvalidInput | MissingModel):
            raise CommandError(str(exc), USAGE) from exc
        raise


def deliver(
    study: "Study", outputs: Outputs, *, title: str, files: Sequence[Path], notes: Sequence[str] = ()
) -> None:
    """Show a study and write the files asked for.

    Args:
        study: what was found.
        outputs: files to write.
        title: of the page.
        files: that were read.
        notes: for the reader.
    """
    from evenmesh_lab import reports

    screen = Screen()
    tables = study.tables()
    for note in notes:
        screen.note(f"note: {note}")
    if outputs.json not in (None, "-"):
        target = Path(str(outputs.json))
        target.write_text(reports.as_json(study) + "\n", encoding="utf-8")
        screen.note(f"wrote {target}")
    if outputs.csv is not None:
        for target in reports.write_csv(tables, outputs.csv):
            screen.note(f"wrote {target}")
    if outputs.figures is not None:
        for target in _plotted(study, outputs.figures):
            screen.note(f"wrote {target}")
    if outputs.html is not None:
        outputs.html.write_text(_page(study, title, files, notes), encoding="utf-8")
        screen.note(f"wrote {outputs.html}")
    if outputs.json == "-":
        sys.stdout.write(reports.as_json(study) + "\n")
    else:
        show(screen, tables)


def show(screen: Screen, tables: Sequence["Table"]) -> None:
    """Show tables; after the first only short ones, and name the others."""
    long = [table for table in tables[1:] if len(table.rows) > MANY_ROWS]
    for place, table in enumerate(table for table in tables if not any(table is one for one in long)):
        if place:
            screen.line()
        screen.line(table.title, style="bold")
        show_table(screen, table)
        if table.note:
            screen.line(table.note, style="dim")
    if long:
        names = " and ".join(f"{table.title.lower()} ({len(table.rows):,} rows)" for table in long)
        screen.note(f"not shown: {names}; --csv FILE writes them")


def show_table(screen: Screen, table: "Table") -> None:
    """Show one table; on a narrow terminal split the columns after the names into several parts."""
    widths = [
        max(
            len(column.label),
            *(len(line) for row in table.rows for line in _lines(screen, row[place])),
        )
        + 3
        for place, column in enumerate(table.columns)
    ]
    names = 0
    while names < len(table.columns) - 1 and not table.columns[names].numeric:
        names += 1
    parts: list[list[int]] = [[]]
    room = max(screen.out.width - 1 - sum(widths[:names]), 1)
    for place in range(names, len(table.columns)):
        if parts[-1] and sum(widths[one] for one in parts[-1]) + widths[place] > room:
            parts.append([])
        parts[-1].append(place)
    for part in parts:
        _show_columns(screen, table, [*range(names), *part])


def _show_columns(screen: Screen, table: "Table", places: Sequence[int]) -> None:
    columns: list[Column] = [table.columns[place] for place in places]
    made = screen.table(
        *(column.label for column in columns), right=tuple(one.label for one in columns if one.numeric)
    )
    for row in table.rows:
        made.add_row(*(_entry(screen, row[place]) for place in places))
    screen.out.print(made)


def _entry(screen: Screen, cell: "Cell") -> Text:
    value, *beside = _lines(screen, cell)
    entry = Text(clean(value))
    for line in beside:
        entry.append(("\n" if screen.fancy else "") + line, style="dim")
    return entry


def _lines(screen: Screen, cell: "Cell") -> list[str]:
    """Return a value and its interval, as two lines on a terminal, where width is scarce."""
    from evenmesh_core.intervals import BootstrapInterval
    from evenmesh_lab.reports.formats import interval_shown, shown

    if not isinstance(cell, BootstrapInterval):
        return [shown(cell)]
    beside = interval_shown(cell)
    if not beside:
        return [shown(cell.value)]
    return [shown(cell.value), beside.strip() if screen.fancy else beside]


def _plotted(study: "Study", path: Path) -> list[Path]:
    from evenmesh_lab import figures

    drawn = figures.of(study)
    if not drawn:
        raise CommandError("--plot: this study has no figure", USAGE)
    written = []
    for name, figure in drawn.items():
        target = path if len(drawn) == 1 else path.with_name(f"{path.stem}-{name}{path.suffix}")
        figures.save(figure, target)
        written.append(target)
    return written


def _page(study: "Study", title: str, files: Sequence[Path], notes: Sequence[str]) -> str:
    from evenmesh_lab import figures, reports
    from evenmesh_lab.studies.statements import intervals

    facts = [
        ("files", ", ".join(str(path) for path in files)),
        ("intervals", intervals(study.bootstrap)),
    ]
    tables = study.tables()
    sections = [reports.Section("Findings", tables[:-1] or tables, figures.of(study), notes)]
    if len(tables) > 1:
        sections.append(reports.Section("Details", tables[-1:]))
    return reports.page(reports.Report(title, facts, sections))
