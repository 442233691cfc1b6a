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

    def tokens(self, text: str) -> list[str]:
        """Return the tokens of a text, in order, repetitions included."""
        if text.isascii():
            return _ASCII_TOKEN.findall(text.lower())
        normal = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
        return self._token.findall(normal.replace("_", " "))


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
        stemmer = getattr(self._thread, "stemmer", None)
        if stemmer is None:
            stemmer = self._thread.stemmer = Stemmer.Stemmer("english", _STEMS_KEPT)
        stems: list[str] = stemmer.stemWords(self._words.tokens(text))
        return stems


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
