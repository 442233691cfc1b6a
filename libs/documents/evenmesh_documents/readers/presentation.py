"""PowerPoint: the text of each slide; a slide is a page and its title a heading."""

import io
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pptx import Presentation
from pptx.oxml.ns import qn

from evenmesh_documents import tables
from evenmesh_documents.document import Document, Kind
from evenmesh_documents.outline import Outline
from evenmesh_documents.readers import archive
from evenmesh_documents.source import Source

_MOST_NESTED: Final = 16
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
        title = slide.shapes.title
        said = title.text_frame.text if title is not None else ""
        outline.heading(1, said or f"Slide {number}", number)
        for shape in _shapes(slide.shapes):
            if title is not None and shape.element is title.element:
                continue
            if getattr(shape, "has_table", False):
                rows = [[cell.text for cell in row.cells] for row in shape.table.rows]
                outline.add(Kind.TABLE, tables.markdown(rows), number)
            elif shape.has_text_frame:
                _text(shape.text_frame, outline, number)
        if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
            outline.add(Kind.PARAGRAPH, slide.notes_slide.notes_text_frame.text, number)
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


def _shapes(shapes: Iterable[Any], depth: int = 0) -> Iterator[Any]:
    """Yield the shapes of a slide, those of groups too."""
    for shape in shapes:
        if hasattr(shape, "shapes") and depth < _MOST_NESTED:
            yield from _shapes(shape.shapes, depth + 1)
        else:
            yield shape


def _text(frame: Any, outline: Outline, page: int) -> None:
    paragraphs = [(_level(one), _said(one)) for one in frame._txBody.iterchildren(_PARAGRAPH)]
    said = [(level, text) for level, text in paragraphs if text]
    if len(said) == 1:
        outline.add(Kind.PARAGRAPH, said[0][1], page)
    else:
        outline.add(Kind.LIST, "\n".join("  " * level + "- " + text for level, text in said), page)


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
