"""EPUB: the chapters of a book, in their order."""

import posixpath
from typing import Any, Final
from urllib.parse import unquote

from lxml import etree

from evenmesh_documents.document import Document, UnreadableError
from evenmesh_documents.outline import Outline
from evenmesh_documents.readers import archive, html
from evenmesh_documents.source import Source

_CONTAINER: Final = "META-INF/container.xml"
_ENCRYPTION: Final = "META-INF/encryption.xml"


def read(source: Source) -> Document:
    """Read a book; its chapters are HTML, and are read as that.

    Raises:
        UnreadableError: it is encrypted, damaged, or beyond a limit.
    """
    with archive.opened(source, doctype=True) as book:
        package_path = next(_xml(book, _CONTAINER).iter("{*}rootfile"), None)
        if package_path is None:
            raise UnreadableError(f"names no package in {_CONTAINER}")
        base = package_path.get("full-path", "")
        package = _xml(book, base)
        items = {one.get("id"): one.get("href", "") for one in package.iter("{*}item")}
        chapters = [
            items[one.get("idref")] for one in package.iter("{*}itemref") if one.get("idref") in items
        ]
        source.limits.check_pages(len(chapters), "chapters")
        outline = Outline(source.limits.characters)
        missing = []
        for chapter in chapters:
            name = posixpath.normpath(posixpath.join(posixpath.dirname(base), unquote(chapter)))
            try:
                data = archive.member(book, name)
            except UnreadableError:
                missing.append(name)
                continue
            if data.strip():
                html.walk(html.main_part(html.tree(data)), outline)
        blocks = outline.blocks()
        if not blocks and _ENCRYPTION in book.namelist():
            raise UnreadableError("is encrypted")
    return Document(
        source.address,
        blocks,
        title=_stated(package, "title") or outline.first_heading,
        author=_stated(package, "creator"),
        language=_stated(package, "language"),
        date=_stated(package, "date"),
        links=outline.links,
        notes=(f"lacks chapters: {', '.join(missing)}",) if missing else (),
    )


def _xml(book: archive.Archive, name: str) -> Any:
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
    data = archive.member(book, name)
    try:
        return etree.fromstring(data, parser=parser)
    except (etree.LxmlError, ValueError) as exc:
        raise UnreadableError(f"is damaged at {name}") from exc


def _stated(package: Any, name: str) -> str:
    found = next(package.iter(f"{{http://purl.org/dc/elements/1.1/}}{name}"), None)
    return "" if found is None else " ".join("".join(found.itertext()).split())
