"""Excel: each sheet is a table below its name."""

import io
from collections.abc import Iterator
from datetime import datetime, time
from typing import Any

from openpyxl.reader.excel import ExcelReader
from openpyxl.worksheet._read_only import ReadOnlyWorksheet

from evenmesh_documents import tables
from evenmesh_documents.document import Document, Kind, UnreadableError
from evenmesh_documents.outline import Outline
from evenmesh_documents.readers import archive
from evenmesh_documents.source import Source


class _Sheet(ReadOnlyWorksheet):  # type: ignore[misc]  # the library has no types
    """A sheet that is as large as its rows; it may say that it is larger, and asking it takes a pass."""

    def _get_size(self) -> None:
        """Leave the size open."""


class _Reader(ExcelReader):  # type: ignore[misc]  # the library has no types
    """The library's reader, whose sheets are read once.

    Sheets of charts, which have no cells, are left out: the library cannot open an empty one. Names of
    ranges, which count them, may then be another sheet's; nothing here reads them.
    """

    def read_worksheets(self) -> None:
        """Open the sheets without reading them."""
        for sheet, relation in self.parser.find_sheets():
            if relation.target in self.valid_files and "chartsheet" not in relation.Type:
                self.wb._sheets.append(_Sheet(self.wb, sheet.name, relation.target, self.shared_strings))


def read(source: Source) -> Document:
    """Read a workbook: of formulas the values that were saved; the first row of a sheet is its header.

    Raises:
        UnreadableError: it is encrypted, damaged, or beyond a limit.
    """
    archive.opened(source, doctype=False).close()
    reader = _Reader(io.BytesIO(source.data), read_only=True, data_only=True, keep_links=False)
    reader.read()
    workbook = reader.wb
    try:
        source.limits.check_pages(len(workbook.worksheets), "sheets")
        outline = Outline(source.limits.characters)
        left = source.limits.characters
        for sheet in workbook.worksheets:
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
