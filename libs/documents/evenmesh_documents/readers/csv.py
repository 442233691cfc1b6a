"""CSV and TSV: one table, the first row as its header."""

import csv
import io
from typing import Final

from evenmesh_documents import tables
from evenmesh_documents.document import Document, Kind, UnreadableError
from evenmesh_documents.outline import Outline
from evenmesh_documents.source import Source, decoded

_SAMPLE: Final = 4_096
"""Characters by which the delimiter is found, in time quadratic in short rows: of 16,384 it is a second."""
_DELIMITERS: Final = ",;\t|"
_QUOTE: Final = '"'


def read(source: Source) -> Document:
    """Read a table; commas, semicolons, tabs or bars stand between its cells.

    Raises:
        UnreadableError: it is no text, a row cannot be read, or it is too long.
    """
    text = decoded(source.data)
    outline = Outline(source.limits.characters)
    if len(text) > source.limits.characters:
        raise UnreadableError(f"has more than {source.limits.characters:,} characters of text")
    before = csv.field_size_limit(source.limits.characters)  # of the whole process
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), dialect=_dialect(source, text)))
    except csv.Error as exc:
        raise UnreadableError(f"is not a table: {exc}") from exc
    finally:
        csv.field_size_limit(before)
    outline.add(Kind.TABLE, tables.markdown(rows))
    return Document(source.address, outline.blocks(), title=source.name)


def _dialect(source: Source, text: str) -> type[csv.Dialect]:
    if source.ending == ".tsv":
        return csv.excel_tab
    try:
        found = csv.Sniffer().sniff(text[:_SAMPLE], delimiters=_DELIMITERS)
    except csv.Error:
        return csv.excel
    # The sample may hold no quote yet, or apostrophes that look like some.
    found.doublequote = True
    if _QUOTE in text:
        found.quotechar = _QUOTE
    return found
