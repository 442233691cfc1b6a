"""Read pages that arrive on standard input: ``python -m evenmesh_retriever.backends.web.reader``.

Every message, either way, is its length in four bytes and then itself. In: a line of JSON, then the page.
Out: first whether it can read at all, then for each page what it says, as JSON.
"""

from __future__ import annotations

import json
import logging
import struct
import sys
from dataclasses import asdict
from typing import BinaryIO, Final

from evenmesh_retriever.backends.web.page import Page

LENGTH: Final = struct.Struct(">I")
"""How long the message is that follows."""

TRIPS: Final = (ValueError, TypeError, AttributeError, LookupError, AssertionError, RecursionError)
"""What libraries that parse a page of a stranger have been seen to raise over one: that page says nothing."""


def request(page: Page, url: str) -> bytes:
    """Return the message that asks for a page to be read."""
    head = json.dumps({"kind": page.kind, "encoding": page.encoding, "url": url}).encode()
    body = head + b"\n" + page.body
    return LENGTH.pack(len(body)) + body


def main() -> None:
    """Read pages until there is no more input."""
    incoming, outgoing = sys.stdin.buffer, sys.stdout.buffer
    # What a library prints is no message, and what it logs would say what somebody asked.
    sys.stdout = sys.stderr
    logging.disable()
    try:
        from evenmesh_retriever.backends.web.extraction import extract
    except ModuleNotFoundError as error:
        _write(outgoing, {"missing": error.name})
        return
    _write(outgoing, {"missing": None})
    while (message := _read(incoming)) is not None:
        line, _, body = message.partition(b"\n")
        head = json.loads(line)
        try:
            text = extract(Page(body, head["kind"], head["encoding"]), head["url"])
        except TRIPS:
            text = None
        _write(outgoing, None if text is None else asdict(text))


def _read(incoming: BinaryIO) -> bytes | None:
    length = incoming.read(LENGTH.size)
    return incoming.read(LENGTH.unpack(length)[0]) if len(length) == LENGTH.size else None


def _write(outgoing: BinaryIO, message: object) -> None:
    body = json.dumps(message).encode()
    outgoing.write(LENGTH.pack(len(body)) + body)
    outgoing.flush()


if __name__ == "__main__":
    main()
