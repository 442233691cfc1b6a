"""Which passages of a context support an answer: those that contain it, and where."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from orchestrator.domain import Citation, Passage

MIN_ANSWER_CHARS: Final = 2
"""Shortest normalised answer that is cited: single characters stand in every passage. Characters."""

_PUNCTUATION: Final = frozenset(string.punctuation)
_WITHOUT_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_ARTICLE: Final = re.compile(r"\b(?:a|an|the)\b")
_WORDLESS: Final = frozenset({"yes", "no"})


def citations(answer: str, passages: Sequence[Passage]) -> list[Citation]:
    """Passages that contain the answer on word boundaries, in the order of the context.

    Both sides are normalised as SQuAD does (lower case, no punctuation, no articles, white space collapsed);
    the span is that of the original text, from its first to past its last character. A passage whose text
    lacks the answer but whose title has it is cited without a span. An answer that is empty, a single
    character, or yes or no is found anywhere and supports nothing: it has no citations.

    Args:
        answer: the answer as the model wrote it.
        passages: the context, best first.
    """
    pattern = _pattern(answer)
    if pattern is None:
        return []
    found = []
    for rank, passage in enumerate(passages, start=1):
        span = _span(pattern, passage.text)
        if span is None and not pattern.search(_normalized(passage.title)):
            continue
        start, end = span if span is not None else (None, None)
        found.append(Citation(passage.id, passage.attributes.get("provider", ""), rank, start, end))
    return found


@lru_cache(maxsize=1024)
def _pattern(answer: str) -> re.Pattern[str] | None:
    """What to look for in normalised text, where articles are gaps; None for nothing."""
    words = _normalized(answer).split()
    size = sum(map(len, words))
    if size < MIN_ANSWER_CHARS or " ".join(words) in _WORDLESS:
        return None
    return re.compile(r"(?<!\w)" + r"\s+".join(map(re.escape, words)) + r"(?!\w)")


def _normalized(text: str) -> str:
    return _ARTICLE.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION))


def _span(pattern: re.Pattern[str], text: str) -> tuple[int, int] | None:
    if pattern.search(_normalized(text)) is None:
        return None
    # Only a passage that has the answer is walked character by character. An article becomes as many blanks,
    # so that places in `plain` stay places in `origin`.
    kept = [(index, small) for index, small in _lowered(text) if small not in _PUNCTUATION]
    plain = _ARTICLE.sub(lambda article: " " * len(article.group()), "".join(small for _, small in kept))
    match = pattern.search(plain)
    if match is None:
        return None
    return kept[match.start()][0], kept[match.end() - 1][0] + 1


def _lowered(text: str) -> Iterable[tuple[int, str]]:
    """Lower-case characters, each with the place it came from."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return enumerate(lowered)
    # A few characters, such as İ, become two. One by one, then, at the price of the final sigma's own form.
    return ((index, small) for index, character in enumerate(text) for small in character.lower())
