"""Pages of mtrag, as far as its passages hold them.

The shared copy of mtrag has the passages that answer its questions and not the pages. A passage's id says
which characters of which page it has, so passages that overlap are put together again: what results is a part
of a page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

from evenmesh_documents import Document, Source, read

_ID: Final = re.compile(r"(.+)-(\d+)-(\d+)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a passage of the data set stands.

    Attributes:
        page: address of the part of a page.
        start: its first word in the part, from 0.
        end: the word after its last.
    """

    page: str
    start: int
    end: int


@dataclass(slots=True)
class _Part:
    """A part of a page: its text, and the spans of its passages. Characters of the page."""

    start: int
    title: str
    text: str
    spans: dict[str, tuple[int, int]]

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def rebuilt(passages: Iterable[Mapping[str, Any]]) -> tuple[list[Document], dict[str, Place]]:
    """Return the parts of pages, each read as a text of its title, and where each passage stands.

    Two passages of a page are put together where they overlap or touch, and say the same where they overlap.
    The address of a part is a number: a page has only a hash as its name, which would stand for a title.

    Args:
        passages: of each ``id`` (page, first character, character after the last) and ``text``, which begins
            with the title where it is longer than its span.

    Raises:
        ValueError: an id does not say which characters it has.
    """
    parts: list[_Part] = []
    read_ = sorted(map(_one, passages), key=lambda one: (one[0], one[1].start, one[1].end))
    for _, group in groupby(read_, key=lambda one: one[0]):
        current: _Part | None = None
        for _, one in group:
            if current is None or not _joined(current, one):
                current = one
                parts.append(one)
    documents, places = [], {}
    for number, part in enumerate(parts):
        address = str(number)
        document = replace(read(Source("page.txt", part.text.encode())), address=address, title=part.title)
        documents.append(document)
        for passage_id, (start, end) in part.spans.items():
            places[passage_id] = Place(
                address, _words(part.text[: start - part.start]), _words(part.text[: end - part.start])
            )
    return documents, places


def of_mtrag(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the tasks that have passages which answer them."""
    return [one for one in rows if one["gold_passage_ids"]]


def _one(passage: Mapping[str, Any]) -> tuple[str, _Part]:
    found = _ID.fullmatch(passage["id"])
    if found is None:
        raise ValueError(f"{passage['id']!r} does not end in its first and last character")
    page, start, end = found[1], int(found[2]), int(found[3])
    text: str = passage["text"]
    before = max(0, len(text) - (end - start))
    body = text[before:]
    return page, _Part(
        start, " ".join(text[:before].split()), body, {passage["id"]: (start, start + len(body))}
    )


def _joined(part: _Part, following: _Part) -> bool:
    """Return whether a passage goes on where a part is; add it if so."""
    repeated = part.end - following.start
    if repeated < 0:
        return False
    same = min(repeated, len(following.text))
    if part.text[following.start - part.start :][:same] != following.text[:same]:
        return False
    part.text += following.text[repeated:]
    part.spans |= following.spans
    return True


def _words(text: str) -> int:
    return len(text.split())
