"""Plain text: paragraphs are what stands between empty lines."""

import re
from typing import Final

from evenmesh_documents.document import Document, Kind
from evenmesh_documents.outline import Outline, clean
from evenmesh_documents.source import Source, decoded

_BETWEEN: Final = re.compile(r"\n[^\S\n]*\n\s*")


def read(source: Source) -> Document:
    """Read a text; a form feed begins the next page.

    Raises:
        UnreadableError: it is no text, or too long.
    """
    outline = Outline(source.limits.characters)
    pages = decoded(source.data).split("\f")
    for number, page in enumerate(pages, start=1):
        for paragraph in paragraphs(page):
            outline.add(Kind.PARAGRAPH, paragraph, number if len(pages) > 1 else None)
    return Document(source.address, outline.blocks())


def paragraphs(text: str) -> list[str]:
    """Return what stands between empty lines."""
    return _BETWEEN.split(clean(text))
