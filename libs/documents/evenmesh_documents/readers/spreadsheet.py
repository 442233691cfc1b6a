"""Excel: each sheet is a table below its name."""

import io
from collections.abc import Iterator
from datetime import datetime, time
from typing import Any

from openpyxl import load_workbook

from evenmesh_documents import tables
from evenmesh_documents.document import Document, Kind, UnreadableError
from evenmesh_documents.outline import Outline
from evenmesh_documents.readers import archive
from evenmesh_documents.source import Source


def read(source: Source) -> Document:
    """Read a workbook: of formulas the values that were saved; the first row of a sheet is its header.

    Raises:
        UnreadableError: it is encrypted, damaged, or beyond a limit.
    """
    archive.opened(source, doctype=False).close()
    workbook = load_workbook(io.BytesIO(source.data), read_only=True, data_only=True, keep_links=False)
    try:
        source.limits.check_pages(len(workbook.worksheets), "sheets")
        outline = Outline(source.limits.characters)
        left = source.limits.characters
        for sheet in workbook.worksheets:
            sheet.reset_dimensions()  # a sheet may say that it is larger than it is
            rows = []
            for row in _rows(sheet):
                left -= sum(map(len, row))
                if left < 0:
                    raise UnreadableError(f"has more than {source.limits.characters:,} characters of text")
                rows.append(row)
            outline.heading(1, sheet.title)
            outline.add(Kind.TABLE, tables.markdown(rows))
        stated = workbook.properties
        date = stated.modified or stated.created
        return Document(
            source.address,
            outline.blocks(),
            title=(stated.title or "").strip() or source.name,
            author=(stated.creator or "").strip(),
            language=(stated.language or "").strip(),
            date=date.date().isoformat() if date is not None else "",
        )
    finally:
        workbook.close()


def _rows(sheet: Any) -> Iterator[list[str]]:
    """Yield the rows that hold something, without the empty cells at their end."""
    for row in sheet.iter_rows(values_only=True):
        cells = [_text(value) for value in row]
        while cells and not cells[-1]:
            cells.pop()
        if cells:
            yield cells


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, datetime) and value.time() == time():
        return value.date().isoformat()
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)
