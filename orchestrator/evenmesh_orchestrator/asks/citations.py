"""Citations: the passages of a context that contain an answer, and where."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from typing import Final

from evenmesh.common.v1.common_pb2 import Passage
from evenmesh.generator.v1.generator_service_pb2 import Answer
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh_kit.compute import steps
from evenmesh_kit.compute.steps import Check, unchecked
from evenmesh_kit.compute.tenant_pool import TenantPool

MIN_ANSWER_CHARS: Final = 2
"""Shortest normalised answer that gets citations: single characters occur in every passage. Characters."""

_PUNCTUATION: Final = frozenset(string.punctuation)
_WITHOUT_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_ARTICLE: Final = re.compile(r"\b(?:a|an|the)\b")
_BOUNDARY: Final = re.compile(r"\b")
_MARK: Final = "|"
"""Stands at both ends of every word of a searched text, whose punctuation is removed before."""
_INLINE_CHARACTERS: Final = 50_000
"""Characters of passages that are searched on the event loop, which takes about a millisecond."""
_NOT_CITED: Final = frozenset({"yes", "no"})


async def found_citations(pool: TenantPool, answer: Answer, passages: Sequence[Passage]) -> list[pb.Citation]:
    """Return :func:`citations_of`, searched in a thread where the passages are long, one passage a step."""
    if sum(len(one.text) for one in passages) <= _INLINE_CHARACTERS:
        return citations_of(answer, passages)
    return await steps.run(pool, lambda check: citations_of(answer, passages, check))


def citations_of(answer: Answer, passages: Sequence[Passage], check: Check = unchecked) -> list[pb.Citation]:
    """Return where the generator copied an answer from, or else the passages that :func:`citations` finds."""
    if not answer.HasField("span"):
        return citations(answer.text, passages, check)
    span = answer.span
    if span.passage >= len(passages) or not span.start < span.end <= len(passages[span.passage].text):
        return citations(answer.text, passages, check)
    return [_citation(passages[span.passage], span.passage + 1, span.start, span.end)]


def citations(answer: str, passages: Sequence[Passage], check: Check = unchecked) -> list[pb.Citation]:
    """Return citations of the passages that contain the answer on word boundaries, in context order.

    Both sides are normalised as SQuAD does (lower case, no punctuation, no articles, white space collapsed);
    the span is that of the original text, from its first to past its last character. A passage whose title
    has the answer, but not its text, is cited without a span. An answer that is empty, a single character,
    "yes" or "no" occurs anywhere, supports nothing, and has no citations.

    Searching takes time linear in the texts, whatever they are. No text becomes a pattern: Python keeps the
    patterns of all tenants in one cache, so that a fast answer would show that another tenant has had it.

    Args:
        answer: the answer as the model wrote it.
        passages: the context, best first.
        check: called before each passage; an error that it raises ends the search.
    """
    words = _normalized(answer).split()
    if sum(map(len, words)) < MIN_ANSWER_CHARS or " ".join(words) in _NOT_CITED:
        return []
    wanted = _searched(answer)
    found = []
    for rank, passage in enumerate(passages, start=1):
        check()
        start, end = _span(wanted, words, passage.text) or (None, None)
        if start is None and wanted not in _searched(passage.title, words):
            continue
        found.append(_citation(passage, rank, start, end))
    return found


def _citation(passage: Passage, rank: int, start: int | None, end: int | None) -> pb.Citation:
    provider = passage.attributes.get("provider", "")
    return pb.Citation(passage_id=passage.id, provider=provider, rank=rank, start=start, end=end)


def _normalized(text: str) -> str:
    return _ARTICLE.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION))


def _searched(text: str, words: Iterable[str] = ()) -> str:
    """Return a text with its words marked; nothing if it lacks one of ``words``, as most texts do."""
    normalized = _normalized(text)
    if not all(word in normalized for word in words):
        return ""
    return " ".join(_BOUNDARY.sub(_MARK, normalized).split())


def _span(wanted: str, words: Sequence[str], text: str) -> tuple[int, int] | None:
    searched = _searched(text, words)
    at = searched.find(wanted)
    if at < 0:
        return None
    # Only a passage that has the answer is processed per character. Without marks and blanks, the searched
    # text and the text without punctuation and articles have the same characters in the same order.
    kept = [(index, small) for index, small in _lowered(text) if small not in _PUNCTUATION]
    plain = _ARTICLE.sub(lambda article: " " * len(article.group()), "".join(small for _, small in kept))
    places = [index for (index, _), small in zip(kept, plain, strict=True) if not small.isspace()]
    before = _characters(searched[:at])
    return places[before], places[before + _characters(wanted) - 1] + 1


def _characters(searched: str) -> int:
    return len(searched) - searched.count(_MARK) - searched.count(" ")


def _lowered(text: str) -> Iterable[tuple[int, str]]:
    """Return the lower-case characters, each with its index in the text."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return enumerate(lowered)
    # A few characters, such as İ, become two. Lowering one by one loses only the form of a final sigma.
    return ((index, small) for index, character in enumerate(text) for small in character.lower())
