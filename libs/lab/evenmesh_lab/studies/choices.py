"""The option that an answer to a multiple-choice question chooses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from evenmesh_core.text_metrics import normalize_answer

_ALONE: Final = re.compile(r"^\W*([A-Z])\W*$")
_FIRST: Final = re.compile(r"^\s*(?:[(\[]\s*([A-Z])\s*[)\]]|([A-Z])\s*[).:\]](?=\s|$))")
_NAMED: Final = re.compile(
    r"\b(?:answer|option|choice)\b(?:\s+is)?\s*:?\s*[(\[\"']?([A-Z])(?=[)\].,:;\"']|\s*$)", re.IGNORECASE
)


def choice(answer: str, options: Mapping[str, str]) -> str | None:
    """Return the letter that an answer chooses; None if it cannot be read.

    In this order: a letter alone (``B``, ``(B)``); a letter in front (``B. Tell the attending``); a letter
    after "answer", "option" or "choice" (``The answer is B.``); the text of one option and no more; the one
    option whose text the answer holds, or the one that holds all others it holds. Texts are compared by words
    without case, punctuation and articles.

    Args:
        answer: what the model said.
        options: texts by letter, an upper-case one.
    """
    for pattern in (_ALONE, _FIRST, _NAMED):
        found = pattern.search(answer)
        letter = next((one for one in found.groups() if one), "") if found else ""
        # The word "answer" may be followed by a word of one small letter.
        if letter in options:
            return letter
    said = normalize_answer(answer)
    texts = {letter: normalize_answer(text) for letter, text in options.items()}
    same = [letter for letter, text in texts.items() if text and text == said]
    if same:
        return same[0] if len(same) == 1 else None
    held = {letter: text for letter, text in texts.items() if text and _holds(said, text)}
    longest = [
        letter
        for letter, text in held.items()
        if all(_holds(text, other) for one, other in held.items() if one != letter)
    ]
    return longest[0] if len(longest) == 1 else None


def _holds(text: str, words: str) -> bool:
    return f" {words} " in f" {text} "
