"""Readers: one module for each format, each with ``read(source) -> Document``."""

from dataclasses import replace
from importlib import import_module
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Final

from evenmesh_documents.document import Document, UnreadableError
from evenmesh_documents.outline import clean
from evenmesh_documents.source import Source

FORMATS: Final = {
    "csv": (".csv", ".tsv"),
    "epub": (".epub",),
    "html": (".html", ".htm", ".xhtml"),
    "mail": (".eml",),
    "markdown": (".md", ".markdown"),
    "pdf": (".pdf",),
    "presentation": (".pptx",),
    "spreadsheet": (".xlsx", ".xlsm"),
    "text": (".txt", ".text", ".log"),
    "word": (".docx",),
}
"""Modules of this package, and the endings of the files that each reads."""

_MODULE_OF: Final = {ending: name for name, endings in FORMATS.items() for ending in endings}
_OLD: Final = {".doc": ".docx", ".ppt": ".pptx", ".xls": ".xlsx"}


def reader_of(address: str) -> str | None:
    """Return the name of the reader of a file by its ending; None where there is none."""
    return _MODULE_OF.get(PurePosixPath(address).suffix.lower())


def without_reader(address: str) -> str:
    """Return why there is no reader of a file."""
    ending = PurePosixPath(address).suffix.lower()
    if ending in _OLD:
        return f"is of an old format that has no reader; save it as {_OLD[ending]}"
    return f"has no reader for {ending}" if ending else "has no ending that names its format"


def read(source: Source) -> Document:
    """Read a file by the reader of its ending, in this process and without its limits of memory and time.

    Use :class:`evenmesh_documents.parsing.parsers.Parsers` for files of strangers.

    Raises:
        UnreadableError: it has no reader, is damaged, encrypted or beyond a limit. A damaged file may raise
            any other error of the library that parses it.
    """
    name = reader_of(source.address)
    if name is None:
        raise UnreadableError(without_reader(source.address))
    return _cleaned(import_module(f"{__name__}.{name}").read(source))


def _cleaned(document: Document) -> Document:
    """Return a document that states nothing but text, as its blocks do: a file may state any characters."""
    title, author, language, date = (
        " ".join(clean(one).split())
        for one in (document.title, document.author, document.language, document.date)
    )
    attributes = {clean(name): clean(value) for name, value in document.attributes.items()}
    return replace(
        document,
        title=title,
        author=author,
        language=language,
        date=date,
        attributes=MappingProxyType(attributes),
        notes=tuple(map(clean, document.notes)),
    )
