"""PowerPoint: the text of each slide; a slide is a page and its title a heading."""

import io
from collections.abc import Iterator
from typing import Any, Final

from pptx import Presentation
from pptx.oxml.ns import qn

from evenmesh_documents import tables
from evenmesh_documents.document import Document, Kind
from evenmesh_documents.outline import Outline
from evenmesh_documents.readers import archive
from evenmesh_documents.source import Source

_MOST_NESTED: Final = 16
_GROUP: Final = qn("p:grpSp")
_SHAPES: Final = (_GROUP, *map(qn, ("p:sp", "p:graphicFrame", "p:pic")))
_PLACEHOLDER: Final = "/".join(("*", qn("p:nvPr"), qn("p:ph")))
_BODIES: Final = (qn("p:txBody"), qn("a:txBody"))
_TABLE: Final = "/".join(map(qn, ("a:graphic", "a:graphicData", "a:tbl")))
_ROW: Final = qn("a:tr")
_CELL: Final = qn("a:tc")
_PARAGRAPH: Final = qn("a:p")
_RUNS: Final = frozenset(map(qn, ("a:r", "a:fld")))
_BREAK: Final = qn("a:br")
_TEXT: Final = qn("a:t")


def read(source: Source) -> Document:
    """Read a presentation: titles, texts, tables and the notes of the speaker.

    Text of charts and diagrams is not read.

    Raises:
        UnreadableError: it is encrypted, damaged, or beyond a limit.
    """
    archive.opened(source, doctype=False).close()
    deck = Presentation(io.BytesIO(source.data))
    source.limits.check_pages(len(deck.slides), "slides")
    outline = Outline(source.limits.characters)
    for number, slide in enumerate(deck.slides, start=1):
        _add(slide.element.cSld.spTree, outline, number)
        if slide.has_notes_slide:
            notes = slide.notes_slide.element.cSld.spTree.iterchildren(*_SHAPES)
            body = next((one for one in notes if _placeholder(one, "type") == "body"), None)
            outline.add(Kind.PARAGRAPH, "\n".join(_paragraphs(body)), number)
    stated = deck.core_properties
    date = stated.modified or stated.created
    return Document(
        source.address,
        outline.blocks(),
        title=(stated.title or "").strip() or outline.first_heading,
        author=(stated.author or "").strip(),
        language=(stated.language or "").strip(),
        date=date.date().isoformat() if date is not None else "",
    )


def _add(tree: Any, outline: Outline, number: int) -> None:
    """Add what a slide shows, below its title.

    The library's objects for shapes, placeholders and frames would take longer than all the rest.
    """
    title = next((one for one in tree.iterchildren(*_SHAPES) if _placeholder(one, "idx", "0") == "0"), None)
    outline.heading(1, " ".join(_paragraphs(title)).strip() or f"Slide {number}", number)
    for shape in _shapes(tree):
        if shape is title:
            continue
        table = shape.find(_TABLE)
        if table is not None:
            rows = [
                [" ".join(_paragraphs(cell)) for cell in row.iterchildren(_CELL)] for row in table.iter(_ROW)
            ]
            outline.add(Kind.TABLE, tables.markdown(rows), number)
        else:
            _text(shape, outline, number)


def _shapes(tree: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the shapes of a slide, those of groups too."""
    for shape in tree.iterchildren(*_SHAPES):
        if shape.tag == _GROUP and depth < _MOST_NESTED:
            yield from _shapes(shape, depth + 1)
        else:
            yield shape


def _placeholder(shape: Any, name: str, default: str = "") -> str | None:
    """Return an attribute of the placeholder that a shape fills; None where it fills none."""
    found = shape.find(_PLACEHOLDER)
    return None if found is None else found.get(name, default)


def _text(shape: Any, outline: Outline, page: int) -> None:
    said = [(_level(one), text) for one in _elements(shape) if (text := _said(one))]
    if len(said) == 1:
        outline.add(Kind.PARAGRAPH, said[0][1], page)
    else:
        outline.add(Kind.LIST, "\n".join("  " * level + "- " + text for level, text in said), page)


def _paragraphs(shape: Any) -> list[str]:
    """Return the paragraphs of a shape, or of a table's cell; none where there is none."""
    return [] if shape is None else [_said(one) for one in _elements(shape)]


def _elements(shape: Any) -> Iterator[Any]:
    for body in shape.iterchildren(*_BODIES):
        yield from body.iterchildren(_PARAGRAPH)


def _level(paragraph: Any) -> int:
    """Return how deep a paragraph is; the library's own ``level`` adds properties to each that has none."""
    properties = paragraph.pPr
    return 0 if properties is None else properties.lvl


def _said(paragraph: Any) -> str:
    """Return the text of a paragraph as the library does, without a query of XPath for each."""
    pieces: list[str] = []
    for child in paragraph:
        if child.tag in _RUNS:
            pieces.append(child.findtext(_TEXT) or "")
        elif child.tag == _BREAK:
            pieces.append(" ")
    return " ".join("".join(pieces).split())
