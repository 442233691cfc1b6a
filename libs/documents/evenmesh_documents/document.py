"""Documents: text with structure, and what is known about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

SEPARATOR: Final = "\n\n"
"""What stands between two blocks in the text of a document."""


class Kind(StrEnum):
    """What a block is; it decides where the block may be split."""

    PARAGRAPH = "paragraph"
    LIST = "list"
    TABLE = "table"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class Link:
    """A link in a document.

    Attributes:
        text: what is shown; may be empty.
        target: where it leads, as written.
    """

    text: str
    target: str


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph, a list, a table or a piece of code.

    Attributes:
        kind: what it is.
        text: its text, not empty: list items begin with ``-`` or a number, tables are Markdown of which the
            first two lines are the header, code is fenced.
        headings: the headings it stands below, outermost first.
        page: page or slide on which it begins, from 1; None where the format has no pages.
        last_page: page on which it ends; None where the format has no pages.
    """

    kind: Kind
    text: str
    headings: tuple[str, ...] = ()
    page: int | None = None
    last_page: int | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """What was read from one file.

    Attributes:
        address: where it is: a path relative to the folder that was read, or a URL.
        blocks: its text, in reading order.
        title: its title; empty if it states none.
        author: who wrote it; empty if it does not say.
        language: language it states, such as ``en``; empty if it states none.
        date: date it states, as written or ISO 8601; empty if it states none.
        links: its links, in order.
        attributes: other things it states: the front matter of Markdown, the address of a page of HTML.
        notes: what of it was not read, a line each; empty if everything was.
    """

    address: str
    blocks: tuple[Block, ...]
    title: str = ""
    author: str = ""
    language: str = ""
    date: str = ""
    links: tuple[Link, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the texts of all blocks with an empty line between two; spans count its characters."""
        return SEPARATOR.join(block.text for block in self.blocks)


class UnreadableError(ValueError):
    """Raised for a file that cannot be read; the message says why, without the name of the file."""


class MissingError(UnreadableError):
    """Raised for a file that is listed and not there any more."""
