"""What passages are looked for with in a turn that has turns before it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from orchestrator.domain import Ask, Augmentation, Decoding, Exchange, Prompt

MAX_BYTES: Final = 8_192
"""Longest text that passages are looked for with. Bytes."""

REWRITE_TEMPLATE: Final = "question"
"""Prompt template that is nothing but the question, which here is the task."""

_MAX_REWRITE_TOKENS: Final = 64
_MAX_ANSWER_CHARS: Final = 500
_WORD: Final = re.compile(r"\w+(?:[-'’.]\w+)*")
_LITTLE_WORDS: Final = """
a about above after again all also am an and any are as at be because been before being below between both
but by can could did do does doing down during each else ever few for from further give go had has have
having he her here hers him his how i if in into is it its itself just know let like list many may me might
mine more most much must my need no nor not now of off ok okay on once one only or other our out over own
please same say she should show so some such tell than thank thanks that the their them then there these
they this those through to too under until up us very want was we well were what when where which while who
whom whose why will with would yes you your
"""
_FUNCTION_WORDS: Final = frozenset(_LITTLE_WORDS.split())


def words(question: str, earlier: Sequence[str]) -> str:
    """The turn, and the content words of earlier user turns that it lacks, the newest turn's first.

    Args:
        question: the user's turn.
        earlier: the user's turns before it, oldest first.

    Returns:
        At most :data:`MAX_BYTES`; the turn itself where nothing is added.
    """
    seen = {word.lower() for word in _WORD.findall(question)} | _FUNCTION_WORDS
    text = question
    for turn in reversed(earlier):
        for word in _WORD.findall(turn):
            if word.lower() in seen:
                continue
            seen.add(word.lower())
            longer = f"{text} {word}"
            if len(longer.encode()) > MAX_BYTES:
                return text
            text = longer
    return text


def rewriting(ask: Ask, turns: Sequence[Exchange]) -> Prompt:
    """The prompt that has the model write a question that stands alone.

    Args:
        ask: the turn.
        turns: those before it, oldest first; the oldest are left out where all would be too long.
    """
    task = "Rewrite the last question so that it can be understood without the conversation.\n"
    end = f"Last question: {ask.question}\nRewritten question:"
    told: list[str] = []
    for turn in reversed(turns):
        one = f"Question: {turn.question}\nAnswer: {turn.answer[:_MAX_ANSWER_CHARS]}\n"
        if len((task + one + "".join(told) + end).encode()) > MAX_BYTES:
            break
        told.insert(0, one)
    decoding = Decoding(num_beams=1, max_new_tokens=_MAX_REWRITE_TOKENS)
    return Prompt(
        task + "".join(told) + end,
        (),
        ask.model,
        Augmentation.RETRIEVAL_FREE,
        decoding,
        template=REWRITE_TEMPLATE,
    )
