"""Split text into the tokens that BM25 counts. A collection's manifest records the analyzer by name.

========== =================== ==========================================================================
name       recorded as         tokens
========== =================== ==========================================================================
unicode    unicode-word-1      case-folded words of any script
whitespace whitespace-1        what white space separates, as it stands: ``str.split``, the way LaMP and the
                               code of the Fair RAG paper hand text to ``rank_bm25``
english    english-snowball-1  those of ``unicode``, stemmed by Snowball's English (Porter 2) stemmer
========== =================== ==========================================================================

None has stop words: BM25 gives words of most passages next to no weight by itself, and "The Who" stays
findable. A recorded name says version and all: two analyzers of one recorded name give the same tokens.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import Stemmer

from evenmesh.wire.errors import InvalidField
from evenmesh_retriever.ports import Analyzer

_ASCII_TOKEN: Final = re.compile(r"[a-z0-9]+")
_STEMS_KEPT: Final = 1000
"""Stems that a thread keeps. As fast as 100,000 for English text, and clearing a full cache of so many words
takes 25 ms, in which no other thread computes in Python."""
_LONGEST_KEPT: Final = 256
"""Longest word whose stem is kept: a text of one word may have 64 KiB. Characters."""
_MARKS_IN_ANY_ORDER: Final = 32
"""Most marks in a row that Unicode's normalization may have to bring into their order. It inserts each one
before those that come later, in a time that is quadratic in the length of the row."""
# Beyond the Basic Multilingual Plane a character class is matched one by one, ten times as slowly.
_MARKS: Final = range(0x300, 0x10000)


class UnicodeWordAnalyzer:
    """Splits text into case-folded Unicode words.

    1. Unicode NFKC, case folding, NFKC again (so ``ﬁne``, ``FINE`` and ``fine`` are one token, and so are
       ``Straße`` and ``STRASSE``).
    2. A token is a longest run of letters, digits and combining marks of any script. Everything else
       separates: white space, punctuation, symbols, the underscore and apostrophes (``don't`` gives ``don``
       and ``t``).
    3. Scripts written without spaces (Chinese, Japanese, Thai) come as whole runs.
    """

    name: Final = "unicode-word-1"

    def __init__(self) -> None:
        # Python's \w lacks the marks that Indic vowels are written with.
        marks = "".join(chr(c) for c in _MARKS if unicodedata.category(chr(c))[0] == "M")
        self._token = re.compile(rf"[\w{marks}]+")
        ordered = "".join(filter(_has_no_starter, map(chr, _MARKS)))
        self._many_marks = re.compile(rf"[{ordered}\U00010000-\U0010ffff]{{{_MARKS_IN_ANY_ORDER + 1},}}")

    def tokens(self, text: str) -> list[str]:
        """Return the tokens of a text, in order, repetitions included."""
        if text.isascii():
            return _ASCII_TOKEN.findall(text.lower())
        normal = unicodedata.normalize("NFKC", self.with_marks_in_order(text)).casefold()
        return self._token.findall(unicodedata.normalize("NFKC", normal).replace("_", " "))

    def with_marks_in_order(self, text: str) -> str:
        """Return a text of the same normal forms, in which long rows of combining marks are in order."""
        return self._many_marks.sub(_in_order, text)


def _has_no_starter(one: str) -> bool:
    """Return whether a character, decomposed, consists of marks that normalization brings into order."""
    return all(map(unicodedata.combining, unicodedata.normalize("NFKD", one)))


def _in_order(row: re.Match[str]) -> str:
    """Return a row of marks, and of characters between them, in canonical order (Unicode, D109)."""
    ordered: list[str] = []
    marks: list[str] = []
    for one in "".join(unicodedata.normalize("NFKD", one) for one in row[0]):
        if unicodedata.combining(one):
            marks.append(one)
        else:
            ordered += [*sorted(marks, key=unicodedata.combining), one]
            marks.clear()
    return "".join(ordered + sorted(marks, key=unicodedata.combining))


class WhitespaceAnalyzer:
    """Splits text at white space and changes nothing: ``Paris,`` and ``paris`` are two tokens."""

    name: Final = "whitespace-1"

    def tokens(self, text: str) -> list[str]:
        """Return the tokens of a text, in order, repetitions included."""
        return text.split()


class EnglishAnalyzer:
    """Unicode words, stemmed: ``running`` and ``runs`` are one token."""

    name: Final = "english-snowball-1"

    def __init__(self) -> None:
        self._words = UnicodeWordAnalyzer()
        # A stemmer keeps what it has stemmed and must not be used by two threads at once.
        self._thread = threading.local()

    def tokens(self, text: str) -> list[str]:
        """Return the tokens of a text, in order, repetitions included."""
        keeping, stemming = self._stemmers()
        words = self._words.tokens(text)
        stemmer = keeping if max(map(len, words), default=0) <= _LONGEST_KEPT else stemming
        stems: list[str] = stemmer.stemWords(words)
        return stems

    def _stemmers(self) -> tuple[Stemmer.Stemmer, Stemmer.Stemmer]:
        """Return those of this thread: one that keeps stems, and one that keeps none."""
        found: tuple[Stemmer.Stemmer, Stemmer.Stemmer] | None = getattr(self._thread, "stemmers", None)
        if found is None:
            found = Stemmer.Stemmer("english", _STEMS_KEPT), Stemmer.Stemmer("english", 0)
            self._thread.stemmers = found
        return found


ANALYZERS: Final[Mapping[str, Callable[[], Analyzer]]] = MappingProxyType(
    {"unicode": UnicodeWordAnalyzer, "whitespace": WhitespaceAnalyzer, "english": EnglishAnalyzer}
)
"""By the name that is given when a collection is created."""
DEFAULT: Final = "english"
"""Of collections that are made without saying: better than ``unicode`` on all five data sets of
docs/science/benchmarks.md, and the same for words that are not English."""
_RECORDED: Final[Mapping[str, Callable[[], Analyzer]]] = {
    kind.name: kind for kind in (UnicodeWordAnalyzer, WhitespaceAnalyzer, EnglishAnalyzer)
}


def analyzer(name: str, field: str = "analyzer") -> Analyzer:
    """Return the analyzer of a name, given or recorded; empty means :data:`DEFAULT`.

    Raises:
        InvalidField: there is no such analyzer; ``field`` is where the name was given.
    """
    make = ANALYZERS.get(name or DEFAULT) or _RECORDED.get(name)
    if make is None:
        raise InvalidField(field, f"must be one of {', '.join(ANALYZERS)}, got {name!r}")
    return make()
