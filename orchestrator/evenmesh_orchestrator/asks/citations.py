"""Citations: the passages of a context that contain an answer, and where."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from evenmesh.common.v1.common_pb2 import Passage
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh_kit.security import caller as callers

MIN_ANSWER_CHARS: Final = 2
"""Shortest normalised answer that gets citations: single characters occur in every passage. Characters."""

_PUNCTUATION: Final = frozenset(string.punctuation)
_WITHOUT_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_ARTICLE: Final = re.compile(r"\b(?:a|an|the)\b")
_NOT_CITED: Final = frozenset({"yes", "no"})


def citations(answer: str, passages: Sequence[Passage]) -> list[pb.Citation]:
    """Return citations of the passages that contain the answer on word boundaries, in context order.

    Both sides are normalised as SQuAD does (lower case, no punctuation, no articles, white space collapsed);
    the span is that of the original text, from its first to past its last character. A passage whose title
    has the answer, but not its text, is cited without a span. An answer that is empty, a single character,
    "yes" or "no" occurs anywhere, supports nothing, and has no citations.

    Args:
        answer: the answer as the model wrote it.
        passages: the context, best first.
    """
    pattern = _pattern(callers.current().tenant, answer)
    if pattern is None:
        return []
    found = []
    for rank, passage in enumerate(passages, start=1):
        start, end = _span(pattern, passage.text) or (None, None)
        if start is None and not pattern.search(_normalized(passage.title)):
            continue
        provider = passage.attributes.get("provider", "")
        found.append(pb.Citation(passage_id=passage.id, provider=provider, rank=rank, start=start, end=end))
    return found


@lru_cache(maxsize=1024)
def _pattern(tenant: str, answer: str) -> re.Pattern[str] | None:  # noqa: ARG001 - a part of the key
    """Return the pattern of an answer in normalised text, where articles are gaps; None for no citations.

    Kept by tenant, so that the time of an answer tells nothing about those of others.
    """
    words = _normalized(answer).split()
    size = sum(map(len, words))
    if size < MIN_ANSWER_CHARS or " ".join(words) in _NOT_CITED:
        return None
    return re.compile(r"(?<!\w)" + r"\s+".join(map(re.escape, words)) + r"(?!\w)")


def _normalized(text: str) -> str:
    return _ARTICLE.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION))


def _span(pattern: re.Pattern[str], text: str) -> tuple[int, int] | None:
    if pattern.search(_normalized(text)) is None:
        return None
    # Only a passage that has the answer is processed per character. An article becomes as many blanks, so
    # that positions in `plain` are positions in `kept`.
    kept = [(index, small) for index, small in _lowered(text) if small not in _PUNCTUATION]
    plain = _ARTICLE.sub(lambda article: " " * len(article.group()), "".join(small for _, small in kept))
    match = pattern.search(plain)
    if match is None:
        return None
    return kept[match.start()][0], kept[match.end() - 1][0] + 1


def _lowered(text: str) -> Iterable[tuple[int, str]]:
    """Return the lower-case characters, each with its index in the text."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return enumerate(lowered)
    # A few characters, such as İ, become two. Lowering one by one loses the special form of a final sigma.
    return ((index, small) for index, character in enumerate(text) for small in character.lower())
