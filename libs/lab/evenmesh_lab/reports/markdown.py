"""Tables as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from evenmesh_lab.reports.formats import shown
from evenmesh_lab.studies.tables import Cell, Table

_LINE_END = re.compile(r"\s*[\r\n]+\s*")


def as_markdown(tables: Sequence[Table], *, level: int = 2) -> str:
    """Return tables as Markdown under their titles, each with its note.

    Args:
        tables: what is shown.
        level: of the headings, from 1.
    """
    return "\n".join(_table(table, level) for table in tables)


def _table(table: Table, level: int) -> str:
    lines = [
        f"{'#' * level} {_cell(table.title)}",
        "",
        f"| {' | '.join(_cell(column.label) for column in table.columns)} |",
        f"|{'|'.join('---:' if column.numeric else '---' for column in table.columns)}|",
        *(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in table.rows),
        "",
    ]
    if table.note:
        lines += [table.note, ""]
    return "\n".join(lines)


def _cell(cell: Cell) -> str:
    """Return a cell on one line, escaped so that no text of it ends the cell or becomes markup."""
    return _LINE_END.sub(" ", shown(cell)).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
