"""What a study's command shows and writes."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.text import Text

from ragmesh.cli.failure import FAILED, USAGE, CommandError
from ragmesh.cli.screen import Screen, clean

if TYPE_CHECKING:
    from raglab.studies import Study
    from raglab.studies.tables import Cell, Column, Table

MANY_ROWS: Final = 40
"""Longest table that is shown."""
LAB: Final = "pip install 'ragmesh[lab]'"
_LAB_MODULES: Final = ("matplotlib", "pyarrow", "jinja2")
_ENDINGS: Final = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Outputs:
    """Where a study goes, beside the terminal.

    Args:
        json: file, or - for standard output, which then holds nothing else.
        csv: file of each query's row.
        plot: file of figures.
        html: file of the page.
    """

    json: str | None = None
    csv: Path | None = None
    plot: Path | None = None
    html: Path | None = None

    def check(self) -> None:
        """Finds out before the work what could not be written after it.

        Raises:
            CommandError: a figure's ending is unknown, or a folder is not there.
        """
        if self.plot is not None and self.plot.suffix.lower() not in _ENDINGS:
            raise CommandError(f"--plot is {str(self.plot)!r}; allowed: .png, .svg or .pdf files", USAGE)
        written = (None if self.json in (None, "-") else Path(str(self.json)), self.csv, self.plot, self.html)
        for path in written:
            if path is not None and not path.absolute().parent.is_dir():
                raise CommandError(f"{path}: there is no folder {str(path.parent)!r}", USAGE)


@contextmanager
def reported() -> Iterator[None]:
    """Within it, what is wrong with files and options ends the command with one line.

    Raises:
        CommandError: a file at fault (1), an option or a model's setting at fault (2), a package that is not
            installed (1).
    """
    try:
        yield
    except ImportError as exc:
        if (exc.name or "").partition(".")[0] in _LAB_MODULES:
            raise CommandError(f"this needs {exc.name}: {LAB}", FAILED) from exc
        raise
    except Exception as exc:
        from ragcore.errors import InvalidInput
        from raglab.files import FileError
        from raglab.similarities import MissingModel

        if isinstance(exc, FileError):
            raise CommandError(str(exc), FAILED) from exc
        if isinstance(exc, InvalidInput | MissingModel):
            raise CommandError(str(exc), USAGE) from exc
        raise


def deliver(
    study: "Study", outputs: Outputs, *, title: str, files: Sequence[Path], notes: Sequence[str] = ()
) -> None:
    """Writes what was asked for and shows a study.

    Args:
        study: what was found.
        outputs: where it goes.
        title: of the page.
        files: what was read.
        notes: what a reader has to know.
    """
    from raglab import reports

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
    if outputs.plot is not None:
        for target in _plotted(study, outputs.plot):
            screen.note(f"wrote {target}")
    if outputs.html is not None:
        outputs.html.write_text(_page(study, title, files, notes), encoding="utf-8")
        screen.note(f"wrote {outputs.html}")
    if outputs.json == "-":
        sys.stdout.write(reports.as_json(study) + "\n")
    else:
        show(screen, tables)


def show(screen: Screen, tables: Sequence["Table"]) -> None:
    """Shows tables; after the first only short ones, and names the others."""
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
    """Shows one table; where a terminal is too narrow, columns after the names come in several parts."""
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
    """A value, and its interval: below it on a terminal, where columns are dear."""
    from ragcore.intervals import BootstrapInterval
    from raglab.reports.formats import interval_shown, shown

    if not isinstance(cell, BootstrapInterval):
        return [shown(cell)]
    beside = interval_shown(cell)
    if not beside:
        return [shown(cell.value)]
    return [shown(cell.value), beside.strip() if screen.fancy else beside]


def _plotted(study: "Study", path: Path) -> list[Path]:
    from raglab import figures

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
    from raglab import figures, reports

    settings = study.bootstrap
    facts = [
        ("files", ", ".join(str(path) for path in files)),
        (
            "intervals",
            f"{settings.level:.0%}, {settings.method} bootstrap over queries, "
            f"{settings.num_resamples:,} resamples, seed {settings.seed}",
        ),
    ]
    tables = study.tables()
    sections = [reports.Section("Findings", tables[:-1] or tables, figures.of(study), notes)]
    if len(tables) > 1:
        sections.append(reports.Section("Details", tables[-1:]))
    return reports.page(reports.Report(title, facts, sections))
