"""Word: the text of the document's body."""

import io
import re
from collections.abc import Iterator
from typing import Any, Final

import docx
from docx.oxml.ns import qn
from docx.table import Table, _Cell
from docx.text.paragraph import Paragraph
from lxml import etree

from evenmesh_documents import tables
from evenmesh_documents.document import Document, Kind
from evenmesh_documents.outline import Outline
from evenmesh_documents.readers import archive
from evenmesh_documents.source import Source

_HEADING: Final = re.compile(r"heading (\d)", re.IGNORECASE)
_MOST_NESTED: Final = 8
_RUN: Final = qn("w:r")
_LINK: Final = qn("w:hyperlink")
_WRAPPERS: Final = tuple(
    map(qn, ("w:sdt", "w:sdtContent", "w:ins", "w:moveTo", "w:fldSimple", "w:smartTag", "w:customXml"))
)
"""What stands around text that is shown: content controls, tracked changes, fields and tags."""
_NOT_SHOWN: Final = tuple(map(qn, ("w:sdtPr", "w:sdtEndPr", "w:del", "w:moveFrom")))
_CONTROL: Final = qn("w:sdt")
_GALLERY: Final = "/".join(map(qn, ("w:sdtPr", "w:docPartObj", "w:docPartGallery")))
_SAID: Final = frozenset(map(qn, ("w:br", "w:cr", "w:noBreakHyphen", "w:ptab", "w:t", "w:tab")))


def read(source: Source) -> Document:
    """Read a document of Word; headings and lists are known by their styles.

    Pages are not in such a file: a program that shows it makes them. Tracked changes are read as accepted.
    Headers, footers, text boxes, footnotes, comments and generated tables of contents are not read.

    Raises:
        UnreadableError: it is encrypted, damaged, or beyond a limit.
    """
    archive.opened(source, doctype=False).close()
    document = docx.Document(io.BytesIO(source.data))
    _unwrap(document.element.body)
    outline = Outline(source.limits.characters)
    title = ""
    items: list[str] = []
    styles: dict[str | None, str] = {}

    def end() -> None:
        outline.add(Kind.LIST, "\n".join(items))
        items.clear()

    for part in document.iter_inner_content():
        if isinstance(part, Table):
            end()
            outline.add(Kind.TABLE, tables.markdown(list(_rows(part))))
            continue
        text = _text(part).strip()
        # The library searches all styles of the document for the one of a paragraph.
        if (style_id := part._p.style) not in styles:
            found = part.style
            styles[style_id] = (found.name or "") if found is not None else ""
        style = styles[style_id]
        if part._p.find(_LINK) is not None:
            for link in part.hyperlinks:
                outline.link(link.text, link.address)
        if not text:
            continue
        if (depth := _list_depth(part, style)) is not None:
            items.append("  " * depth + "- " + " ".join(text.split()))
            continue
        end()
        if level := _HEADING.match(style):
            outline.heading(int(level[1]), text)
        elif style == "Title" and not title:
            title = " ".join(text.split())
        else:
            outline.add(Kind.PARAGRAPH, text)
    end()
    stated = document.core_properties
    date = stated.modified or stated.created
    return Document(
        source.address,
        outline.blocks(),
        title=title or (stated.title or "").strip() or outline.first_heading,
        author=(stated.author or "").strip(),
        language=(stated.language or "").strip(),
        date=date.date().isoformat() if date is not None else "",
        links=outline.links,
    )


def _unwrap(body: Any) -> None:
    """Put what stands in wrappers, which the library passes over, in their place."""
    for control in list(body.iter(_CONTROL)):
        gallery = control.find(_GALLERY)
        if gallery is not None and gallery.get(qn("w:val")) == "Table of Contents":
            control.getparent().remove(control)
    etree.strip_elements(body, *_NOT_SHOWN, with_tail=False)
    etree.strip_tags(body, *_WRAPPERS)


def _text(paragraph: Paragraph) -> str:
    """Return the text of a paragraph as the library does, without two queries of XPath for each run."""
    pieces: list[str] = []
    for child in paragraph._p:
        if child.tag == _LINK:
            runs = [one for one in child if one.tag == _RUN]
        else:
            runs = [child] if child.tag == _RUN else []
        for run in runs:
            pieces += [str(one) for one in run if one.tag in _SAID]
    return "".join(pieces)


def _list_depth(paragraph: Paragraph, style: str) -> int | None:
    """Return how deep an item of a list is, from 0; None of other paragraphs."""
    properties: Any = paragraph._p.pPr
    numbering = None if properties is None else properties.numPr
    if numbering is not None:
        level = numbering.ilvl
        return 0 if level is None else min(int(level.val), _MOST_NESTED)
    if style.startswith("List ") and style != "List Paragraph":
        digit = style[-1]
        return int(digit) - 1 if digit.isdigit() else 0
    return None


def _rows(table: Table) -> Iterator[list[str]]:
    for row in table.rows:
        yield ["\n".join(_lines(cell)) for cell in row.cells]


def _lines(cell: _Cell) -> Iterator[str]:
    """Yield the texts of a cell; a row of a table in it is one."""
    for part in cell.iter_inner_content():
        if isinstance(part, Table):
            yield from map(" ".join, _rows(part))
        else:
            yield _text(part)
