"""The analyzer: how text becomes the tokens that BM25 counts.

``unicode-word-1``, recorded in the manifest of every collection:

1. Unicode NFKC, case folding, NFKC again (so ``ﬁne``, ``FINE`` and ``fine`` are one token, and so are
   ``Straße`` and ``STRASSE``).
2. A token is a longest run of letters, digits and combining marks of any script. Everything else separates:
   white space, punctuation, symbols, the underscore and apostrophes (``don't`` gives ``don`` and ``t``).
3. No stop words, no stemming. Scripts written without spaces (Chinese, Japanese, Thai) come as whole runs.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_ASCII_TOKEN: Final = re.compile(r"[a-z0-9]+")
# Beyond the Basic Multilingual Plane a character class is matched one by one, ten times as slowly.
_MARKS: Final = range(0x300, 0x10000)


class UnicodeWordAnalyzer:
    """Splits text into case-folded Unicode words."""

    name: Final = "unicode-word-1"

    def __init__(self) -> None:
        # Python's \w lacks the marks that Indic vowels are written with.
        marks = "".join(chr(c) for c in _MARKS if unicodedata.category(chr(c))[0] == "M")
        self._token = re.compile(rf"[\w{marks}]+")

    def tokens(self, text: str) -> list[str]:
        """The tokens of a text, in order, repetitions included."""
        if text.isascii():
            return _ASCII_TOKEN.findall(text.lower())
        normal = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
        return self._token.findall(normal.replace("_", " "))
