"""Tables as Markdown."""

import re
from collections.abc import Sequence
from typing import Final

HEADER_LINES: Final = 2
"""Lines of a table's header: the names of its columns, and the rule below them."""

_UNESCAPED_BAR: Final = re.compile(r"(?<!\\)\|")


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown: one line each row, the first row as its header.

    Args:
        rows: the cells of each row; rows may differ in length. Empty rows are left out.
    """
    kept = [row for row in rows if any(cell.strip() for cell in row)]
    if not kept:
        return ""
    columns = max(len(row) for row in kept)
    head, *rest = (line([*row, *[""] * (columns - len(row))]) for row in kept)
    return "\n".join([head, "|" + " --- |" * columns, *rest])


def line(cells: Sequence[str]) -> str:
    """Return a row of a table as one line."""
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def cells(row: str) -> list[str]:
    """Return the cells of a line that :func:`line` wrote."""
    return [
        cell.strip().replace("\\|", "|")
        for cell in _UNESCAPED_BAR.split(row.strip().removeprefix("|").removesuffix("|"))
    ]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
