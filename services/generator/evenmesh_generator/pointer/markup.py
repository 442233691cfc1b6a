"""Markdown as text: what marks it up becomes blanks, so that every character keeps its place."""

from __future__ import annotations

import re
from typing import Final

BREAK: Final = "\N{LINE SEPARATOR}"
"""The blank that stands between two blocks, such as headings and list items: no answer crosses it."""

CELL: Final = "\N{INVISIBLE SEPARATOR}"
"""Stands where a cell of a table ends."""

_LONGEST_HEAD: Final = 40
"""Characters of a column's head that are read before each of its cells, at most."""
_SIGNS: Final = frozenset("`*_#|>[~-+=")
# No pattern looks twice at a sign: whatever the text, the time is linear in its length.
_FENCE: Final = re.compile(r" {0,3}(?:```|~~~)")
_RULE: Final = re.compile(r"\s*(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,}|=+\s*)")
_DELIMITERS: Final = re.compile(r"[\s|:]*-[\s|:-]*")
_BLOCK: Final = re.compile(r"\s*(?:#{1,6}(?=\s)|>+|[-*+](?=\s))\s*(?:[-*+](?=\s))?")
_LINK: Final = re.compile(r"(!?\[)([^][]*)(\]\([^()]*\))")
_STARS: Final = re.compile(r"(?<![\w*])(\*{1,3}|~~)(?=[^\s*~])([^*~]*)(?<=[^\s*~])(\1)(?![\w*])")
_LINES: Final = re.compile(r"(?<!\w)(_{1,2})(?=[^\s_])([^_]*)(?<=[^\s_])(\1)(?!\w)")


def readable(text: str) -> str:
    """Return Markdown as text of the same length, every character in its place.

    Signs of emphasis and code become blanks; signs of headings, quotations and lists, rules, fences and the
    targets of links :data:`BREAK`; bars of tables :data:`CELL`. What is in code stays as it is. Text without
    such signs is returned as it is.
    """
    if _SIGNS.isdisjoint(text):
        return text
    lines = text.split("\n")
    in_code = in_table = False
    for at, line in enumerate(lines):
        if _FENCE.match(line):
            in_code = not in_code
            lines[at] = BREAK * len(line)
        elif not in_code:
            follows = at + 1 < len(lines) and "|" in lines[at + 1] and _is_rule_of_table(lines[at + 1])
            in_table = "|" in line and (in_table or follows or _is_row(line))
            lines[at] = _row(line) if in_table else _block(line)
    return "\n".join(lines)


def heads_of_cells(plain: str) -> list[tuple[int, str]]:
    """Return what stands for the cells of tables: before which character, and the head of its column.

    A cell far below the head of its column is read as if it stood beside it. The heads of all cells have as
    many characters as the text, at most: cells after that get none.

    Args:
        plain: of :func:`readable`.
    """
    found: list[tuple[int, str]] = []
    heads: list[str] = []
    room, begin, before = len(plain), 0, ""
    for line in plain.split("\n") if CELL in plain else ():
        if CELL not in line:
            is_rule = bool(line) and not line.strip(BREAK) and CELL in before
            heads = [_head(one) for one in before.split(CELL)] if is_rule else []
        elif heads:
            at = begin
            for cell, head in zip(line.split(CELL), heads, strict=False):
                text = cell.lstrip()
                if text and head and len(head) <= room:
                    found.append((at + len(cell) - len(text), head))
                    room -= len(head)
                at += len(cell) + 1
        begin, before = begin + len(line) + 1, line
    return found


def _head(cell: str) -> str:
    """Return what is read before the cells of a column."""
    words = cell.replace(BREAK, " ").split()
    head = " ".join(words)
    return f"{head}: " if 0 < len(head) <= _LONGEST_HEAD else ""


def _is_row(line: str) -> bool:
    stripped = line.strip()
    return len(stripped) > 1 and stripped[0] == stripped[-1] == "|"


def _is_rule_of_table(line: str) -> bool:
    return _DELIMITERS.fullmatch(line) is not None


def _row(line: str) -> str:
    """Return a row of a table."""
    if _is_rule_of_table(line):
        return BREAK * len(line)
    return CELL.join(map(_inline, line.replace("\\|", "\\\0").split("|"))).replace("\0", "|")


def _block(line: str) -> str:
    if _RULE.fullmatch(line):
        return BREAK * len(line)
    begun = _BLOCK.match(line)
    if begun is None:
        return _inline(line)
    return BREAK * begun.end() + _inline(line[begun.end() :])


def _inline(text: str) -> str:
    """Return a text without emphasis, targets of links, and the marks of code."""
    parts = text.split("`")
    if len(parts) % 2:  # every second part is code
        parts[::2] = map(_prose, parts[::2])
        return " ".join(parts)
    return _prose(text)


def _prose(text: str) -> str:
    text = _LINK.sub(lambda link: f"{_blank(link[1])}{link[2]}{BREAK * len(link[3])}", text)
    for marks in (_STARS, _LINES):
        text = marks.sub(lambda found: f"{_blank(found[1])}{found[2]}{_blank(found[3])}", text)
    return text


def _blank(marks: str) -> str:
    return " " * len(marks)
