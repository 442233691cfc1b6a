"""Messages between the parsers' processes and ours: their length in eight bytes, then themselves.

A reply is JSON, so a parser that a hostile file took over can send us texts and nothing that runs.
"""

import json
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import IO, Any, Final

from evenmesh_documents.document import Block, Document, Kind, Link

LENGTH: Final = struct.Struct(">Q")

_KINDS: Final = {kind.value: kind for kind in Kind}
_TEXTS: Final = ("address", "title", "author", "language", "date")


class StreamError(Exception):
    """Raised where the other side ended, or sent what is no message."""


def send(stream: IO[bytes], *parts: bytes) -> None:
    """Write a message."""
    stream.write(LENGTH.pack(sum(map(len, parts))))
    for part in parts:
        stream.write(part)
    stream.flush()


def receive(stream: IO[bytes], most: int) -> bytes:
    """Return the next message.

    Raises:
        StreamError: there is none, it is cut off, or longer than ``most`` bytes.
    """
    head = stream.read(LENGTH.size)
    if len(head) != LENGTH.size:
        raise StreamError
    length = LENGTH.unpack(head)[0]
    if length > most:
        raise StreamError
    body = stream.read(length)
    if len(body) != length:
        raise StreamError
    return body


def packed(document: Document) -> bytes:
    """Return a document as bytes."""
    values = {name: getattr(document, name) for name in (*_TEXTS, "notes")}
    blocks = [(one.kind, one.text, one.headings, one.page, one.last_page) for one in document.blocks]
    links = [(one.text, one.target) for one in document.links]
    return json.dumps(
        {**values, "blocks": blocks, "links": links, "attributes": dict(document.attributes)}
    ).encode()


def unpacked(values: Mapping[str, Any]) -> Document:
    """Return the document that :func:`packed` wrote.

    Raises:
        TypeError, ValueError, KeyError: it is none.
    """
    # The headings of a block are mostly those of the one before.
    above: dict[tuple[object, ...], tuple[str, ...]] = {}
    blocks = []
    for kind, text, headings, page, last_page in values["blocks"]:
        key = tuple(headings)
        if key not in above:
            above[key] = tuple(map(_text, key))
        blocks.append(Block(_KINDS[kind], _text(text), above[key], _number(page), _number(last_page)))
    texts = {name: _text(values[name]) for name in _TEXTS}
    return Document(
        blocks=tuple(blocks),
        links=tuple(Link(_text(text), _text(target)) for text, target in values["links"]),
        attributes=MappingProxyType({_text(name): _text(one) for name, one in values["attributes"].items()}),
        notes=tuple(map(_text, values["notes"])),
        **texts,
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("is no text")
    if not value.isascii():
        value.encode()  # halves of surrogate pairs, which JSON can hold, are none
    return value


def _number(value: object) -> int | None:
    if value is not None and not isinstance(value, int):
        raise TypeError("is no number")
    return value
