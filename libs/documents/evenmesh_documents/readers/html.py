"""HTML: the text of its main part."""

import re
from collections.abc import Iterable
from types import MappingProxyType
from typing import Final

from lxml import etree
from lxml import html as lxml_html

from evenmesh_documents import tables
from evenmesh_documents.document import Document, Kind, UnreadableError
from evenmesh_documents.outline import Outline
from evenmesh_documents.source import Source, decoded

_HEAD_BYTES: Final = 4_096
_DECLARED: Final = re.compile(
    rb"""(?:<\?xml[^>]*?encoding|<meta[^>]*?charset)\s*=\s*["']?\s*([A-Za-z0-9_.:-]{1,40})""", re.IGNORECASE
)
_HEADINGS: Final = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
_LISTS: Final = frozenset(("ul", "ol"))
_NEVER: Final = frozenset(
    {"script", "style", "noscript", "template", "svg", "math", "iframe", "object", "head", "dialog"}
) | {"button", "select", "input", "textarea"}
_AROUND: Final = frozenset(("nav", "footer", "aside", "header"))
_CONTENT: Final = ("main", "article")
_INLINE: Final = (
    frozenset(
        {"a", "abbr", "b", "bdi", "bdo", "big", "br", "cite", "code", "data", "del", "dfn", "em", "font"}
    )
    | {"i", "img", "ins", "kbd", "label", "mark", "q", "s", "samp", "small", "span", "strong", "sub", "sup"}
    | {"time", "tt", "u", "var", "wbr"}
)
_MOST_SPANNED: Final = 64
_META: Final = {
    "author": ("author", "article:author", "dc.creator", "citation_author"),
    "date": (
        "article:published_time",
        "date",
        "dc.date",
        "citation_publication_date",
        "article:modified_time",
    ),
    "site": ("og:site_name",),
    "description": ("description", "og:description"),
    "url": ("og:url",),
}


def read(source: Source) -> Document:
    """Read the main part of a page: ``main`` or the only ``article``, else all.

    Navigation, asides, footers and the header of the page are left out; that of an article is read.

    Its attributes are ``url`` (its canonical address), ``site`` and ``description``, where it states them.

    Raises:
        UnreadableError: it is no HTML, or too long.
    """
    outline = Outline(source.limits.characters)
    root = tree(source.data)
    stated = _stated(root)
    title = _title(root)
    walk(main_part(root), outline)
    return Document(
        source.address,
        outline.blocks(),
        title=title or outline.first_heading,
        author=stated.pop("author", ""),
        language=(root.get("lang") or root.get("{http://www.w3.org/XML/1998/namespace}lang") or "").strip(),
        date=stated.pop("date", ""),
        links=outline.links,
        attributes=MappingProxyType(stated),
    )


def tree(data: bytes | str) -> lxml_html.HtmlElement:
    """Return the parsed page; the encoding of bytes is the one that they declare.

    Raises:
        UnreadableError: it is no HTML.
    """
    text = data if isinstance(data, str) else _decoded(data)
    parser = lxml_html.HTMLParser(
        encoding="utf-8", no_network=True, huge_tree=False, remove_comments=True, remove_pis=True
    )
    try:
        root = lxml_html.document_fromstring(text.encode("utf-8", "replace"), parser=parser)
    except (etree.LxmlError, ValueError, AssertionError) as exc:
        raise UnreadableError("is not HTML, or is empty") from exc
    return root


def _decoded(data: bytes) -> str:
    declared = _DECLARED.search(data[:_HEAD_BYTES])
    return decoded(data, declared[1].decode() if declared is not None else None)


def add(text: str, outline: Outline) -> None:
    """Add a fragment of HTML to a document of another format."""
    try:
        root = lxml_html.fragment_fromstring(
            text, create_parent="div", parser=lxml_html.HTMLParser(no_network=True, remove_comments=True)
        )
    except (etree.LxmlError, ValueError, AssertionError):
        return
    walk(root, outline)


def main_part(root: lxml_html.HtmlElement) -> lxml_html.HtmlElement:
    """Return what holds the content of a page."""
    for name in _CONTENT:
        found = list(root.iter(name))
        if len(found) == 1:
            return found[0]
    body = root.find("body")
    return root if body is None else body


def walk(root: lxml_html.HtmlElement, outline: Outline) -> None:
    """Add the blocks of an element to a document."""
    _Walk(outline).block(root)


class _Walk:
    """Walks through the elements of a page; text between two blocks becomes a paragraph."""

    def __init__(self, outline: Outline) -> None:
        self._outline = outline
        self._pieces: list[str] = []

    def block(self, element: lxml_html.HtmlElement) -> None:
        """Add an element and what it holds."""
        self._flush()
        self._inside(element)
        self._flush()

    def _inside(self, element: lxml_html.HtmlElement) -> None:
        self._pieces.append(_spaced(element.text))
        for child in element:
            self._child(child)
            self._pieces.append(_spaced(child.tail))

    def _child(self, element: lxml_html.HtmlElement) -> None:
        name = element.tag
        if not isinstance(name, str) or name in _NEVER or _hidden(element):
            return
        if name in _AROUND and not (
            name == "header" and next(element.iterancestors(*_CONTENT), None) is not None
        ):
            return
        if name in _HEADINGS:
            self._flush()
            self._outline.heading(int(name[1]), self._text(element))
        elif name in _LISTS and not _holds(element, _HEADINGS | {"table", "pre"}):
            self._flush()
            self._outline.add(Kind.LIST, "\n".join(self._items(element, "")))
        elif name == "table" and not _layout(element):
            self._flush()
            for caption in element.iter("caption"):
                self._outline.add(Kind.PARAGRAPH, _tidy(self._text(caption)))
            self._outline.add(Kind.TABLE, tables.markdown(self._rows(element)))
        elif name == "pre":
            self._flush()
            code = "".join(element.itertext()).strip("\n").rstrip()
            self._outline.add(Kind.CODE, f"```\n{code}\n```" if code else "")
        elif name in _INLINE and not _holds(element, _HEADINGS | _LISTS | {"table", "pre", "p", "div"}):
            self._pieces.append(self._text(element))
        else:
            self.block(element)

    def _flush(self) -> None:
        if text := _tidy("".join(self._pieces)):
            self._outline.add(Kind.PARAGRAPH, text)
        self._pieces.clear()

    def _text(self, element: lxml_html.HtmlElement) -> str:
        """Return the text of an element without blocks, with white space as it is shown."""
        name = element.tag
        if not isinstance(name, str) or name in _NEVER or _hidden(element):
            return ""
        if name == "br":
            return "\n"
        pieces = [_spaced(element.text)]
        for child in element:
            apart = " " if child.tag in ("p", "div", "li", "td", "tr") else ""
            pieces += [apart, self._text(child), apart, _spaced(child.tail)]
        text = "".join(pieces)
        if name == "a":
            self._outline.link(text, (element.get("href") or "").strip())
        if name in ("code", "kbd", "samp", "tt") and text.strip() and "`" not in text:
            return f"`{text.strip()}`"
        return text

    def _items(self, element: lxml_html.HtmlElement, indent: str) -> list[str]:
        """Return the lines of a list; those of the lists in it are indented.

        Text and elements that should not stand between items are items too, or hold some.
        """
        lines = _loose(element.text, indent)
        number = 0
        for item in element:
            if item.tag != "li":
                if item.tag in _LISTS:
                    lines += self._items(item, indent + "  ")
                elif isinstance(item.tag, str) and item.tag not in _NEVER and not _hidden(item):
                    lines += (
                        self._items(item, indent)
                        if _holds(item, ("li",))
                        else _loose(self._text(item), indent)
                    )
                lines += _loose(item.tail, indent)
                continue
            if _hidden(item):
                continue
            number += 1
            mark = f"{number}. " if element.tag == "ol" else "- "
            below = indent + " " * len(mark)
            pieces, nested = [_spaced(item.text)], []
            for child in item:
                if child.tag in _LISTS:
                    nested += self._items(child, below)
                else:
                    apart = " " if child.tag in ("p", "div") else ""
                    pieces += [apart, self._text(child), apart]
                pieces.append(_spaced(child.tail))
            said = _tidy("".join(pieces)).replace("\n", "\n" + below)
            lines += [indent + mark + said] if said else []
            lines += nested
            lines += _loose(item.tail, indent)
        return lines

    def _rows(self, table: lxml_html.HtmlElement) -> list[list[str]]:
        """Return the cells of a table; a cell that spans several is said in each of them."""
        rows: list[list[str]] = []
        below: dict[int, tuple[int, str]] = {}
        for row in table.iter("tr"):  # in forms, too, which stand between a table and its rows on old pages
            cells: list[str] = []
            for cell in row.iter("td", "th"):
                if next(cell.iterancestors("tr")) is not row:
                    continue
                _fill(cells, below)
                text = _tidy(self._text(cell)).replace("\n", " ")
                columns, lines = _span(cell, "colspan"), _span(cell, "rowspan")
                for _ in range(columns):
                    if lines > 1:
                        below[len(cells)] = (lines - 1, text)
                    cells.append(text)
            _fill(cells, below)
            rows.append(cells)
        return rows


def _fill(cells: list[str], below: dict[int, tuple[int, str]]) -> None:
    """Say the cells that span down into this row."""
    while (found := below.get(len(cells))) is not None:
        left, text = found
        if left == 1:
            del below[len(cells)]
        else:
            below[len(cells)] = (left - 1, text)
        cells.append(text)


def _loose(text: str | None, indent: str) -> list[str]:
    """Return the item of a list that its loose text is; none for white space."""
    said = _tidy(_spaced(text))
    return [f"{indent}- {said}"] if said else []


def _span(cell: lxml_html.HtmlElement, name: str) -> int:
    try:
        return min(max(1, int(cell.get(name, "1"))), _MOST_SPANNED)
    except ValueError:
        return 1


def _layout(table: lxml_html.HtmlElement) -> bool:
    """Return whether a table only places things beside each other, or has no cells."""
    if (
        table.get("role") == "presentation"
        or next(table.iter("td", "th"), None) is None
        or next(table.iter(*_HEADINGS, "ul", "ol", "pre"), None) is not None
    ):
        return True
    return any(inner is not table for inner in table.iter("table"))


def _holds(element: lxml_html.HtmlElement, names: Iterable[str]) -> bool:
    return next(element.iterdescendants(*names), None) is not None


def _hidden(element: lxml_html.HtmlElement) -> bool:
    return "hidden" in element.attrib or element.get("aria-hidden") == "true"


def _spaced(text: str | None) -> str:
    """Return a text with one space for all white space between words, and at its ends if there is any."""
    if not text:
        return ""
    words = " ".join(text.split())
    if not words:
        return " "
    return f"{' ' if text[0].isspace() else ''}{words}{' ' if text[-1].isspace() else ''}"


def _tidy(text: str) -> str:
    if "  " in text:
        text = re.sub(r" {2,}", " ", text)
    return (re.sub(r" *\n *", "\n", text) if "\n" in text else text).strip()


def _title(root: lxml_html.HtmlElement) -> str:
    found = root.find(".//title")
    return "" if found is None else " ".join("".join(found.itertext()).split())


def _stated(root: lxml_html.HtmlElement) -> dict[str, str]:
    metas: dict[str, str] = {}
    for meta in root.iter("meta"):
        name = (meta.get("name") or meta.get("property") or "").strip().lower()
        if value := " ".join((meta.get("content") or "").split()):
            metas.setdefault(name, value)
    found = {}
    for field, names in _META.items():
        if value := next((metas[name] for name in names if name in metas), ""):
            found[field] = value
    for link in root.iter("link"):
        if (link.get("rel") or "").lower() == "canonical" and (link.get("href") or "").strip():
            found["url"] = link.get("href").strip()
            break
    return found
