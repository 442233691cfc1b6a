"""Collect the blocks of a document under its headings."""

import re
from typing import Final

from evenmesh_documents.document import Block, Kind, Link, UnreadableError

MAX_HEADING: Final = 300
"""Longest heading; the rest of a longer one is left out. Characters."""
MAX_LINKS: Final = 10_000
"""Most links that are kept of a document."""
MAX_LINK: Final = 2_000
"""Longest target of a link that is kept. Characters."""

# Everything that is neither text nor white space, and halves of surrogate pairs, which no encoding has.
_NO_TEXT: Final = re.compile(r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
_LINE_END: Final = re.compile(r"\r\n?|\x85|\u2028|\u2029")


class Outline:
    """Collects blocks, each with the headings above it.

    Args:
        characters: longest text of the document.

    Attributes:
        first_heading: the first heading; empty if there is none.
    """

    def __init__(self, characters: int) -> None:
        self._left = characters
        self._most = characters
        self._blocks: list[Block] = []
        self._levels: list[tuple[int, str]] = []
        self._bare: tuple[str, int | None] | None = None
        self._links: list[Link] = []
        self.first_heading = ""

    def heading(self, level: int, text: str, page: int | None = None) -> None:
        """Begin a section.

        Args:
            level: 1 for the outermost; headings of the same or a deeper level end.
            text: the heading.
            page: where it stands.

        Raises:
            UnreadableError: the text is too long.
        """
        said = " ".join(clean(text).split())
        if not said:
            return
        self._take(len(said))
        if len(said) > MAX_HEADING:
            said = said[: MAX_HEADING - 1] + "…"
        # A heading without a text of its own is said by the deeper heading that follows, or else stands as a
        # text.
        if self._levels and level <= self._levels[-1][0]:
            self._keep_bare()
        while self._levels and self._levels[-1][0] >= level:
            self._levels.pop()
        self._levels.append((level, said))
        self._bare = (said, page)
        self.first_heading = self.first_heading or said

    def add(self, kind: Kind, text: str, page: int | None = None, last_page: int | None = None) -> None:
        """Add a block below the current headings; add nothing where there is no text.

        Raises:
            UnreadableError: the text is too long.
        """
        said = "\n".join(line.rstrip() for line in clean(text).split("\n")).strip("\n")
        if not said.strip():
            return
        self._take(len(said))
        self._bare = None
        last = page if last_page is None else last_page
        self._blocks.append(Block(kind, said, self.headings, page, last))

    @property
    def headings(self) -> tuple[str, ...]:
        """Return the current headings, outermost first."""
        return tuple(text for _, text in self._levels)

    def link(self, text: str, target: str) -> None:
        """Keep a link, while there are not too many."""
        if target and len(self._links) < MAX_LINKS and len(target) <= MAX_LINK:
            self._links.append(Link(" ".join(clean(text).split())[:MAX_HEADING], clean(target)))

    @property
    def links(self) -> tuple[Link, ...]:
        """Return the links that were kept."""
        return tuple(self._links)

    def blocks(self) -> tuple[Block, ...]:
        """Return all blocks."""
        self._keep_bare()
        return tuple(self._blocks)

    def _keep_bare(self) -> None:
        """Make a text of a heading that nothing stands below."""
        if self._bare is not None:
            text, page = self._bare
            self._bare = None
            self._blocks.append(Block(Kind.PARAGRAPH, text, self.headings, page, page))

    def _take(self, characters: int) -> None:
        self._left -= characters
        if self._left < 0:
            raise UnreadableError(f"has more than {self._most:,} characters of text")


def clean(text: str) -> str:
    """Return a text with ``\\n`` for every end of a line, and without characters that are none of a text."""
    # Most texts have nothing of both, which is seen much faster than looked for.
    if text.isprintable() or text.replace("\n", "").isprintable():
        return text
    return _NO_TEXT.sub("", _LINE_END.sub("\n", text))
