"""Markdown: CommonMark with tables and front matter."""

import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from types import MappingProxyType
from typing import Final

import yaml
from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from evenmesh_documents import tables
from evenmesh_documents.document import Document, Kind
from evenmesh_documents.outline import Outline
from evenmesh_documents.readers import html
from evenmesh_documents.source import Source, decoded

MAX_FRONT_MATTER: Final = 65_536
"""Longest front matter. Characters."""

_FRONT_MATTER: Final = re.compile(
    r"---[^\S\n]*\n(.*?)^(?:---|\.\.\.)[^\S\n]*(?:\n|\Z)", re.DOTALL | re.MULTILINE
)
_BREAK: Final = re.compile(r"<br\s*/?>", re.IGNORECASE)
_PARSER: Final = MarkdownIt("commonmark").enable("table")
_FIELDS: Final = {
    "title": "title",
    "author": "author",
    "language": "language",
    "lang": "language",
    "date": "date",
}


def read(source: Source) -> Document:
    """Read a page of Markdown; fields of its front matter are attributes.

    Links keep their text and code its backticks; emphasis is left out, as are comments. HTML within it is
    read as HTML.

    Raises:
        UnreadableError: it is no text, or too long.
    """
    text = decoded(source.data).replace("\r\n", "\n")
    outline = Outline(source.limits.characters)
    stated: Mapping[str, str] = MappingProxyType({})
    notes: tuple[str, ...] = ()
    if found := _FRONT_MATTER.match(text):
        text = text[found.end() :]
        try:
            stated = front_matter(found[1])
        except ValueError as exc:
            notes = (f"its front matter {exc}",)
    for node in SyntaxTreeNode(_PARSER.parse(text)).children:
        _block(node, outline)
    fields = dict.fromkeys(("title", "author", "language", "date"), "")
    for given, name in _FIELDS.items():
        fields[name] = fields[name] or stated.get(given, "")
    fields["title"] = fields["title"] or outline.first_heading
    attributes = {name: value for name, value in stated.items() if name not in _FIELDS}
    return Document(
        source.address,
        outline.blocks(),
        links=outline.links,
        attributes=MappingProxyType(attributes),
        notes=notes,
        **fields,
    )


def front_matter(text: str) -> Mapping[str, str]:
    """Return the fields of YAML front matter that are values, or lists of values; the latter with commas.

    Raises:
        ValueError: it is too long, or no YAML object.
    """
    if len(text) > MAX_FRONT_MATTER:
        raise ValueError(f"is longer than {MAX_FRONT_MATTER:,} characters")
    try:
        fields = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise ValueError("is not YAML") from exc
    if fields is None:
        return MappingProxyType({})
    if not isinstance(fields, dict):
        raise ValueError("is not a YAML object")
    found = {}
    for name, value in fields.items():
        # What is nested deeper is left out, and so aliases of aliases are never written out.
        values = [_scalar(one) for one in (value if isinstance(value, list) else [value])]
        said = ", ".join(one for one in values if one)
        if isinstance(name, str) and said:
            found[name] = said
    return MappingProxyType(found)


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, date | datetime):
        return value.isoformat()
    return str(value) if isinstance(value, str | int | float) else ""


def _block(node: SyntaxTreeNode, outline: Outline) -> None:
    match node.type:
        case "heading":
            outline.heading(int(node.tag[1]), _inline(node, outline))
        case "paragraph":
            outline.add(Kind.PARAGRAPH, _inline(node, outline))
        case "bullet_list" | "ordered_list":
            outline.add(Kind.LIST, "\n".join(_items(node, outline, "")))
        case "fence" | "code_block":
            outline.add(Kind.CODE, _fenced(node))
        case "table":
            rows = [
                [_inline(cell, outline) for cell in row.children]
                for part in node.children
                for row in part.children
            ]
            outline.add(Kind.TABLE, tables.markdown(rows))
        case "html_block":
            html.add(node.content, outline)
        case "hr":
            pass
        case _:
            for child in node.children:
                _block(child, outline)


def _items(node: SyntaxTreeNode, outline: Outline, indent: str) -> Iterator[str]:
    """Yield the lines of a list; what belongs to an item is indented below it."""
    first = int(node.attrs.get("start", 1))
    for number, item in enumerate(node.children, start=first):
        mark = f"{number}. " if node.type == "ordered_list" else "- "
        below = indent + " " * len(mark)
        lines = list(_of_item(item, outline, below))
        yield indent + mark + (lines[0].removeprefix(below) if lines else "")
        yield from lines[1:]


def _of_item(item: SyntaxTreeNode, outline: Outline, indent: str) -> Iterator[str]:
    for child in item.children:
        if child.type in ("bullet_list", "ordered_list"):
            yield from _items(child, outline, indent)
        elif child.type in ("fence", "code_block"):
            yield from (indent + line for line in _fenced(child).split("\n"))
        elif child.children and child.children[0].type != "inline":
            yield from _of_item(child, outline, indent)
        elif said := _inline(child, outline) if child.children else child.content.strip():
            yield from (indent + line for line in said.split("\n"))


def _fenced(node: SyntaxTreeNode) -> str:
    fence = node.markup if node.type == "fence" else "```"
    return f"{fence}{node.info.strip() if node.type == 'fence' else ''}\n{node.content.rstrip()}\n{fence}"


def _inline(node: SyntaxTreeNode, outline: Outline) -> str:
    """Return the text of a block that holds inline content."""
    return "".join(piece for child in node.children for piece in _pieces(child, outline)).strip()


def _pieces(node: SyntaxTreeNode, outline: Outline) -> Iterator[str]:
    match node.type:
        case "text" | "text_special" | "image":
            yield node.content
        case "code_inline":
            yield f"`{node.content}`"
        case "softbreak":
            yield " "
        case "hardbreak":
            yield "\n"
        case "html_inline":
            yield "\n" if _BREAK.fullmatch(node.content) else ""
        case "link":
            said = "".join(piece for child in node.children for piece in _pieces(child, outline))
            outline.link(said, str(node.attrs.get("href", "")))
            yield said
        case _:
            for child in node.children:
                yield from _pieces(child, outline)
