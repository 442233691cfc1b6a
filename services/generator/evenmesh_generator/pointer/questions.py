"""Find what a long question asks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from evenmesh_core.earlier_words import words

_ABBREVIATIONS: Final = (
    "[A-Z]|Capt|Col|Dr|Gen|Gov|Jr|Lt|Mr|Mrs|Ms|No|Pres|Prof|Rep|Rev|Sen|Sgt|Sr|St|approx|cf|e[.]g|i[.]e|vs"
)
_NOT_AFTER: Final = "".join(rf"(?<!\b{one}[.])" for one in _ABBREVIATIONS.split("|"))
_SENTENCE_END: Final = re.compile(rf"(?<=[.!?]){_NOT_AFTER}[\"'”’)\]]*\s+(?=[^\sa-z])")
_CLOSING: Final = "\"'”’)]"


def asking(text: str) -> str:
    """Return the sentences of ``text`` that end with a question mark, in order; may be empty."""
    return " ".join(_divided(text)[0])


def asking_first(text: str) -> str:
    """Return :func:`asking`, followed by the content words that the other sentences add, the last one first;
    ``text`` if no sentence asks.

    A reader that learnt from bare questions takes what stands before one for a part of it.
    """
    asked, others = _divided(text)
    return words(" ".join(asked), others) if asked else text


def _divided(text: str) -> tuple[list[str], list[str]]:
    """Return the sentences that ask, and the others."""
    asked: list[str] = []
    others: list[str] = []
    for block in _blocks(text):
        for sentence in _SENTENCE_END.split(block):
            (asked if sentence.rstrip(_CLOSING).endswith("?") else others).append(sentence)
    return asked, others


def _blocks(text: str) -> Iterator[str]:
    """Yield the lines of a text, each with those after it that begin with a small letter."""
    block: list[str] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if block and not line[0].islower():
            yield " ".join(block)
            block = []
        block.append(line)
    yield " ".join(block)
