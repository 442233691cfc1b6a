"""Cut documents into chunks with 4-gram labels, and answers out of passages."""

import math
import re
from collections.abc import Iterator, Sequence
from enum import Enum

from evenmesh_core.text_metrics import contains_answer, four_gram_recall

_WORD = re.compile(r"\S+")
_SENTENCE = re.compile(r"(?<=[.!?])[\"')\]]*\s+")


class Label(Enum):
    """What 4-gram recall says of a chunk."""

    RELEVANT = "relevant"
    IRRELEVANT = "irrelevant"
    DROPPED = "dropped"


def chunks(text: str, words: int) -> Iterator[tuple[int, str]]:
    """Yield chunks of ``words`` whitespace tokens (the last may have fewer), each with its start."""
    spans = [match.span() for match in _WORD.finditer(text)]
    for begin in range(0, len(spans), words):
        first, last = spans[begin], spans[min(begin + words, len(spans)) - 1]
        yield first[0], text[first[0] : last[1]]


def label(chunk: str, answer: str, *, above: float, below: float) -> Label:
    """Label a chunk by its 4-gram recall of ``answer``: relevant over ``above``, irrelevant under ``below``.

    Both strictly; what lies between, and an answer of under four words, is dropped.

    Source: Yu et al. (2024), section 4.2.
    """
    recall = four_gram_recall(chunk, answer)
    if math.isnan(recall):
        return Label.DROPPED
    if recall > above:
        return Label.RELEVANT
    return Label.IRRELEVANT if recall < below else Label.DROPPED


def without_answer(text: str, answers: Sequence[str]) -> str | None:
    """Return ``text`` without sentences that hold one of ``answers``; None if nothing useful is left.

    Nothing useful: under eight words left, no sentence cut, or an answer that spans sentences left over.
    """
    sentences = _SENTENCE.split(text)
    kept = [one for one in sentences if not any(contains_answer(one, answer) for answer in answers)]
    rest = " ".join(kept)
    if len(kept) == len(sentences) or len(rest.split()) < 8:
        return None
    return None if any(contains_answer(rest, answer) for answer in answers) else rest
