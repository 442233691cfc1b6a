"""Cut long text into passages of about equal length that begin and end with sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_SENTENCE_END: Final = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|\n+")


def chunks(text: str, words: int) -> list[str]:
    """Return the text in parts of about ``words`` words, in order; nothing is left out but white space.

    A part ends with the sentence that brings it nearest to ``words``; a sentence longer than that is cut.
    Source: Li et al., ensemble of retrievers, appendix C.1, "chunks with an average of 100 words".

    Args:
        text: any text.
        words: size of the parts, [1, inf). Words.
    """
    parts: list[str] = []
    held: list[str] = []
    for sentence in _sentences(text, words):
        over = len(held) + len(sentence) - words
        if held and over > 0 and over >= words - len(held):
            parts.append(" ".join(held))
            held = []
        held += sentence
        if len(held) >= words:
            parts.append(" ".join(held))
            held = []
    if held:
        parts.append(" ".join(held))
    return parts


def _sentences(text: str, words: int) -> Iterator[list[str]]:
    """Yield sentences as words, none longer than ``words``."""
    for sentence in _SENTENCE_END.split(text):
        split = sentence.split()
        for begin in range(0, len(split), words):
            yield split[begin : begin + words]
