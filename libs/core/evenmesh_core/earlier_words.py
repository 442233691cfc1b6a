"""Words of earlier turns of a conversation, for what searches or reads the turn after them.

docs/guides/conversations.md has the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

EARLIER_TURNS: Final = 10
"""Default number of earlier turns whose words are added."""

MAX_BYTES: Final = 8_192
"""Longest search text. Bytes."""

_WORD: Final = re.compile(r"\w+(?:[-'’.]\w+)*")
_FUNCTION_WORD_LIST: Final = """
a about above after again all also am an and any are as at be because been before being below between both
but by can could did do does doing down during each else ever few for from further give go had has have
having he her here hers him his how i if in into is it its itself just know let like list many may me might
mine more most much must my need no nor not now of off ok okay on once one only or other our out over own
please same say she should show so some such tell than thank thanks that the their them then there these
they this those through to too under until up us very want was we well were what when where which while who
whom whose why will with would yes you your
"""
_FUNCTION_WORDS: Final = frozenset(_FUNCTION_WORD_LIST.split())


def words(question: str, earlier: Sequence[str], *, least: int | None = None) -> str:
    """Return the turn followed by content words of earlier user turns that it lacks, newest turn first.

    Args:
        question: the user's turn.
        earlier: the user's turns before it, oldest first.
        least: adds no more words than the turn needs to have so many different content words; None: all.

    Returns:
        At most :data:`MAX_BYTES`; the turn itself where nothing is added.
    """
    seen = {word.lower() for word in _WORD.findall(question)}
    room = None if least is None else max(0, least - content_words(question))
    seen |= _FUNCTION_WORDS
    text = question
    for word in islice(_new_words(reversed(earlier), seen), room):
        longer = f"{text} {word}"
        if len(longer.encode()) > MAX_BYTES:
            break
        text = longer
    return text


def _new_words(turns: Iterable[str], seen: set[str]) -> Iterator[str]:
    """Yield each word of the turns that was not seen, once, whatever its case."""
    for turn in turns:
        for word in _WORD.findall(turn):
            if word.lower() not in seen:
                seen.add(word.lower())
                yield word


def balanced(question: str, text: str, *, times_added: int = 1, most: int = 3) -> str:
    """Return the text of :func:`words` with the turn repeated, so that what was added does not outweigh it.

    A retriever weighs words by how often they are there.

    Args:
        question: the user's turn.
        text: the turn, followed by added words.
        times_added: the turn is repeated until it has so many times the words that were added, [1, inf).
        most: most times that the turn is there, [1, inf).

    Returns:
        At most :data:`MAX_BYTES`.
    """
    own = len(_WORD.findall(question))
    added = len(_WORD.findall(text)) - own
    times = min(most, -(-times_added * added // max(1, own)))
    for _ in range(1, times):
        longer = f"{question} {text}"
        if len(longer.encode()) > MAX_BYTES:
            break
        text = longer
    return text


def content_words(text: str) -> int:
    """Return how many different words of a text are not function words."""
    return len({word.lower() for word in _WORD.findall(text)} - _FUNCTION_WORDS)
