"""Split documents into passages along their structure."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from pathlib import PurePosixPath
from typing import Final

from evenmesh_documents import counting, tables
from evenmesh_documents.document import SEPARATOR, Block, Document, Kind

MIN_SIZE: Final = 16
MAX_SIZE: Final = 2_048
MAX_CHARACTERS: Final = 12_000
"""Longest text of a passage: with its title it stays below the 65,536 bytes that a mesh takes. Characters."""
MAX_UNIT: Final = 8_000
"""Longest row of a table that is kept whole, whatever the size of passages. Characters."""
MAX_HEADER: Final = 2_000
"""Longest header of a table that is repeated. Characters."""
MAX_TITLE: Final = 1_000
"""Longest title of a passage. Characters."""
MAX_ADDRESS: Final = 200
"""Longest part of an id that stands for the address. Bytes."""

_ABOVE: Final = " › "
_ABBREVIATIONS: Final = ("[A-Z]", "e.g", "i.e", "cf", "vs", "Dr", "Mr", "Mrs", "No")
_NOT_AFTER: Final = "".join(rf"(?<!\b{one.replace('.', '[.]')}\.)" for one in _ABBREVIATIONS)
_SENTENCE_END: Final = re.compile(rf"(?<=[.!?…]){_NOT_AFTER}[\"'”’)\]]*\s+(?=[^\sa-z])|\n|(?<=[。！？])")
_LINE_END: Final = re.compile(r"\n")
_ITEM_END: Final = re.compile(r"\n(?=(?:- |\d+\. ))")
_PARAGRAPH_END: Final = re.compile(r"\n[^\S\n]*\n")
_WORD_END: Final = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Splitting:
    """How documents are split.

    Attributes:
        size: most that a passage with its title has, in the unit of ``count``; 16 to 2,048.
        overlap: most that a passage repeats of the one before, at most half of ``size``.
        count: length of a text: words, or the tokens of a model (:mod:`evenmesh_documents.counting`).
        apart: column of tables; rows that differ in it are never in one passage. Empty for none.

    Raises:
        ValueError: a value is outside its range.
    """

    size: int = 110
    overlap: int = 0
    count: counting.Counter = counting.words
    apart: str = ""

    @property
    def unit(self) -> str:
        """Return what is counted, for people."""
        return "words" if self.count is counting.words else "tokens"

    def __post_init__(self) -> None:
        if not MIN_SIZE <= self.size <= MAX_SIZE:
            raise ValueError(f"size must be {MIN_SIZE} to {MAX_SIZE:,}, is {self.size:,}")
        if not 0 <= self.overlap <= self.size // 2:
            raise ValueError(
                f"overlap must be 0 to half of the size, {self.size // 2:,}, is {self.overlap:,}"
            )


@dataclass(frozen=True, slots=True)
class Chunk:
    """A passage of a document, and where it stands.

    Attributes:
        id: the document's address and a hash of the text; the same as long as both are the same.
        text: what it says: the characters of its span; before them the header of its table, where it begins
            within one.
        title: title of the document and headings; outer ones are left out where they are long.
        headings: all headings above it, outermost first.
        page: page on which it begins, from 1; None without pages.
        last_page: page on which it ends.
        start: first character of its span in :attr:`Document.text`.
        end: where its span ends.
        oversize: whether it is longer than the size that was asked for, because a row of a table is.
        value: cell of the column that keeps rows apart; empty without.
    """

    id: str
    text: str
    title: str
    headings: tuple[str, ...]
    page: int | None
    last_page: int | None
    start: int
    end: int
    oversize: bool = False
    value: str = ""


def split(document: Document, splitting: Splitting | None = None) -> list[Chunk]:
    """Split a document into passages.

    Blocks of one section are joined while they fit; a section never shares a passage with another. A block
    that does not fit is divided where it says so itself: a table between rows, a list between items, code at
    empty lines and then lines, a paragraph between sentences; only then between words, and a word only where
    it is longer than a passage. Every character of every block that is not white space is in exactly one
    span, without overlap.

    Args:
        document: what to split.
        splitting: how; the defaults without it.
    """
    how = Splitting() if splitting is None else splitting
    text = document.text
    ids: dict[str, int] = {}
    address = short(document.address)
    chunks = []
    for title, budget, units in _sections(document, how):
        for window in _windows(units, budget, how.overlap):
            chunks.append(_chunk(text, title, budget, window, address, ids))
    return chunks


@dataclass(frozen=True, slots=True)
class _Unit:
    """What is not divided further.

    Attributes:
        start: its first character in the text of the document.
        end: where it ends.
        cost: its length.
        block: the block it is of.
        header: header of its table, if it is not the first part of it; else empty.
        header_cost: length of that.
        value: cell of the column that keeps rows apart.
    """

    start: int
    end: int
    cost: int
    block: Block
    header: str = ""
    header_cost: int = 0
    value: str = ""


def _sections(document: Document, how: Splitting) -> Iterator[tuple[str, int, list[_Unit]]]:
    """Yield title, size left for the text, and units of each section."""
    at = 0
    for headings, blocks in groupby(document.blocks, key=lambda block: block.headings):
        title = _title(document, headings, how)
        budget = how.size - how.count(title)
        units: list[_Unit] = []
        for block in blocks:
            units += _units(block, at, budget, how)
            at += len(block.text) + len(SEPARATOR)
        yield title, budget, units


def _title(document: Document, headings: tuple[str, ...], how: Splitting) -> str:
    """Return the title of a section's passages, at most half as long as a passage."""
    own = document.title.strip()
    parts = [own] if own and own not in headings[:1] else []
    parts = [*parts, *headings] or [PurePosixPath(document.address).stem]
    most = how.size // 2
    while len(parts) > 1 and not _fits(_ABOVE.join(parts), most, MAX_TITLE, how.count):
        del parts[0]
    title = _ABOVE.join(parts)[:MAX_TITLE]
    while title and how.count(title) > most:
        title = title[: len(title) // 2].rstrip()
    return title


def _units(block: Block, at: int, budget: int, how: Splitting) -> Iterator[_Unit]:
    """Yield the units of a block that begins at ``at``."""
    if block.kind is Kind.TABLE:
        yield from _rows(block, at, budget, how)
        return
    steps = {Kind.PARAGRAPH: (_SENTENCE_END,), Kind.LIST: (_ITEM_END, _LINE_END, _SENTENCE_END)}
    for start, end, cost in _divided(
        block.text, 0, len(block.text), budget, MAX_CHARACTERS, how.count, steps.get(block.kind, _CODE)
    ):
        yield _Unit(at + start, at + end, cost, block)


_CODE: Final = (_PARAGRAPH_END, _LINE_END)


def _rows(block: Block, at: int, budget: int, how: Splitting) -> Iterator[_Unit]:
    """Yield a table whole, where it fits; else its header with the first row, and the other rows."""
    text = block.text
    lines = list(_spans(text, 0, len(text), _LINE_END))
    column = -1
    if how.apart:
        names = tables.cells(text[slice(*lines[0])])
        column = names.index(how.apart) if how.apart in names else -1
    if column < 0 and _fits(text, budget, MAX_CHARACTERS, how.count):
        yield _Unit(at, at + len(text), how.count(text), block)
        return
    header_end = lines[min(tables.HEADER_LINES, len(lines)) - 1][1]
    header = text[:header_end]
    cost = how.count(header)
    if cost > budget // 2 or len(header) > MAX_HEADER:
        header = ""
    first = True
    for start, end in lines[tables.HEADER_LINES :] or [(0, header_end)]:
        value = ""
        if column >= 0:
            cells = tables.cells(text[start:end])
            value = cells[column] if column < len(cells) else ""
        if first:
            # Its header belongs to the first row, whatever follows.
            start, first = 0, False
            parts = [(0, end, how.count(text[:end]))] if end <= MAX_UNIT else None
            for one in parts or _divided(text, start, end, budget, MAX_UNIT, how.count, (_LINE_END,)):
                yield _Unit(at + one[0], at + one[1], one[2], block, value=value)
            continue
        whole = (start, end, how.count(text[start:end]))
        for one in (
            [whole]
            if end - start <= MAX_UNIT
            else _divided(text, start, end, budget, MAX_UNIT, how.count, ())
        ):
            yield _Unit(at + one[0], at + one[1], one[2], block, header, cost if header else 0, value)


def _divided(
    text: str,
    start: int,
    end: int,
    budget: int,
    most: int,
    count: counting.Counter,
    steps: Sequence[re.Pattern[str]],
) -> Iterator[tuple[int, int, int]]:
    """Yield start, end and length of the pieces of a text: as few steps down as each needs to fit."""
    piece = text[start:end]
    cost = count(piece)
    if cost <= budget and len(piece) <= most:
        yield start, end, cost
    elif steps:
        for one in _spans(text, start, end, steps[0]):
            yield from _divided(text, *one, budget, most, count, steps[1:])
    elif _WORD_END.search(piece):
        for one in _spans(text, start, end, _WORD_END):
            yield from _divided(text, *one, budget, most, count, ())
    elif end - start > 1:
        middle = (start + end) // 2
        yield from _divided(text, start, middle, budget, most, count, ())
        yield from _divided(text, middle, end, budget, most, count, ())
    else:
        yield start, end, cost


def _spans(text: str, start: int, end: int, between: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield the spans between the matches of a pattern, without white space at their ends."""
    at = start
    for found in between.finditer(text, start, end):
        yield from _trimmed(text, at, found.end())
        at = found.end()
    yield from _trimmed(text, at, end)


def _trimmed(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    piece = text[start:end]
    if piece.strip():
        # The white space before code and items of lists is a part of them.
        lead = len(piece) - len(piece.lstrip("\n"))
        yield start + lead, start + len(piece.rstrip())


def _windows(units: Sequence[_Unit], budget: int, overlap: int) -> Iterator[Sequence[_Unit]]:
    """Yield runs of units that fit into a passage, each but the first with an overlap."""
    first = at = 0
    cost = 0
    while at < len(units):
        unit = units[at]
        if at == first:
            cost = unit.header_cost
        fits = cost + unit.cost <= budget and unit.end - units[first].start <= MAX_CHARACTERS - MAX_HEADER
        if at > first and not (fits and unit.value == units[first].value):
            yield units[first:at]
            first = _overlapping(units, first, at, budget, overlap)
            cost = units[first].header_cost + sum(one.cost for one in units[first:at])
            if first == at:
                continue
        cost += unit.cost
        at += 1
    if first < at:
        yield units[first:at]


def _overlapping(units: Sequence[_Unit], first: int, at: int, budget: int, overlap: int) -> int:
    """Return the first unit of the next run: units before ``at`` are repeated while all fit."""
    start, repeated = at, 0
    while start - 1 > first:
        before = units[start - 1]
        repeated += before.cost
        whole = before.header_cost + repeated + units[at].cost
        long = units[at].end - before.start > MAX_CHARACTERS - MAX_HEADER
        if repeated > overlap or whole > budget or long or before.value != units[at].value:
            break
        start -= 1
    return start


def _chunk(
    text: str, title: str, budget: int, window: Sequence[_Unit], address: str, ids: dict[str, int]
) -> Chunk:
    first, last = window[0], window[-1]
    said = text[first.start : last.end]
    if first.header:
        said = f"{first.header}\n{said}"
    key = f"{address}#{blake2b(said.encode(), digest_size=8).hexdigest()}"
    ids[key] = ids.get(key, 0) + 1
    return Chunk(
        id=key if ids[key] == 1 else f"{key}-{ids[key]}",
        text=said,
        title=title,
        headings=first.block.headings,
        page=first.block.page,
        last_page=last.block.last_page,
        start=first.start,
        end=last.end,
        oversize=first.header_cost + sum(one.cost for one in window) > budget,
        value=first.value,
    )


def _fits(text: str, size: int, characters: int, count: Callable[[str], int]) -> bool:
    return len(text) <= characters and count(text) <= size


def short(address: str) -> str:
    """Return an address in at most 200 bytes, which leaves room for a hash; a long one ends in its own."""
    data = address.encode()
    if len(data) <= MAX_ADDRESS:
        return address
    digest = blake2b(data, digest_size=8).hexdigest()
    return f"{data[: MAX_ADDRESS - 20].decode(errors='ignore')}~{digest}"
