"""Find what a message asks among what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from evenmesh_core.earlier_words import MAX_BYTES, balanced, content_words, words

_ABBREVIATION_LIST: Final = """
[A-Za-z] Assoc Ave Blvd Bros Capt Co Col Corp Cpl Dept Dr Ft Gen Gov Hon Inc Jr Lt Ltd Maj Mr Mrs Ms Mt Mts No
Op Pres Prof Pt Rep Rev Sen Sgt Sr St Univ Vol approx ca cf e[.]g ed est fig i[.]e no pp viz vol vs
Jan Feb Mar Apr Aug Sept Sep Oct Nov Dec
"""
_LEAST_WORDS: Final = 3
_CONTENT_WORDS: Final = 6
_LEAST_SEARCHED: Final = 2
_TIMES_SAID: Final = 2
_MOST_TIMES: Final = 4
_CLOSING: Final = re.escape("\"'”’)]")
_NOT_AFTER: Final = "".join(rf"(?<!\b{one}[.])" for one in _ABBREVIATION_LIST.split())
_SENTENCE_END: Final = re.compile(rf"(?<=[?])\s+|(?<=[.!?]){_NOT_AFTER}[{_CLOSING}]*\s+(?=[^\sa-z])")
"""A bare question mark always ends a sentence: words of earlier turns follow it, in small letters too. Behind
a quotation mark, as in a title, a small letter goes on with the sentence."""
_ASKS: Final = re.compile(rf"[?][{_CLOSING}]*\s*\Z")
_ENDS: Final = re.compile(rf"[.!?][{_CLOSING}]*\s*\Z")


def asking(text: str) -> str:
    """Return the sentences of ``text`` that end with a question mark, in order; may be empty."""
    return " ".join(_divided(text)[1])


def asking_first(text: str) -> str:
    """Return :func:`asking`, with content words that the other sentences add until it has six: first those
    before the last question, the nearest first, then those after it. All words follow of a text behind the
    last question that ends without a mark: a conversation adds words of earlier turns there.

    If what asks has less than three words, such as "Why?", all words of the others follow. It is ``text`` if
    none or all ask. A reader that learnt from bare questions takes what stands beside one for a part of it.
    docs/guides/prompts.md has the numbers.
    """
    before, asked, after, added = _divided(text)
    if not asked or not (before or after or added):
        return text
    question = " ".join(asked)
    least = _CONTENT_WORDS if len(question.split()) >= _LEAST_WORDS else None
    return words(words(question, [*reversed(after), *before], least=least), added)


def asking_alone(text: str) -> str:
    """Return :func:`asking` with the words of earlier turns that a conversation adds: a text behind the last
    question that ends without a mark.

    It is ``text`` if none or all ask, or if what asks has less than three words, such as "Why?".
    """
    before, asked, after, added = _divided(text)
    question = " ".join(asked)
    if len(question.split()) < _LEAST_WORDS or not (before or after):
        return text
    return " ".join([question, *added])


def searched(question: str, text: str) -> str:
    """Return what a retriever searches for: what a question asks outweighs what it says beside it.

    What asks is there until it has twice the words of the others, four times at most; the others' content
    words follow once each. The whole question is searched for if it only asks, or if what asks has less than
    two content words, as in "How do I renew it?". Then words of earlier turns follow, which the question
    outweighs (:func:`evenmesh_core.earlier_words.balanced`). docs/guides/retrievers.md has the numbers.

    Args:
        question: the user's turn.
        text: the turn, followed by words of earlier turns, if any.

    Returns:
        At most :data:`evenmesh_core.earlier_words.MAX_BYTES`, as ``text`` has.
    """
    asks = asking_alone(question)
    weighed = question
    if asks != question and content_words(asks) >= _LEAST_SEARCHED:
        weighed = balanced(asks, words(asks, [question]), times_added=_TIMES_SAID, most=_MOST_TIMES)
    added = text.removeprefix(question)
    if len(f"{weighed}{added}".encode()) > MAX_BYTES:
        weighed = question
    return balanced(weighed, weighed + added)


def _divided(text: str) -> tuple[list[str], list[str], list[str], list[str]]:
    """Return the sentences that ask, between the others before and after the last of them; and behind all,
    apart, a text that ends without a mark.
    """
    others: list[str] = []
    asked: list[str] = []
    before = 0
    for block in _blocks(text):
        for sentence in _SENTENCE_END.split(block):
            if _ASKS.search(sentence):
                asked.append(sentence)
                before = len(others)
            else:
                others.append(sentence)
    after = others[before:]
    added = [after.pop()] if after and not _ENDS.search(after[-1]) else []
    return others[:before], asked, after, added


def _blocks(text: str) -> Iterator[str]:
    """Yield the lines of a text, each with those after it that begin with a small letter."""
    block: list[str] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if block and not line[0].islower():
            yield " ".join(block)
            block = []
        block.append(line)
    yield " ".join(block)
