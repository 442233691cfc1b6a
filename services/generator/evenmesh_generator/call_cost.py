"""Count what a call asks of a model, before any of it is computed.

The unit is a token that the model reads. What is written counts by the time that the bundled model takes for
it on a processor, in tokens that it reads: docs/decisions/0010-five-seconds-of-models.md has the numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from evenmesh_generator.domain import (
    Augmentation,
    GenerationRequest,
    ModelDescription,
    Passage,
    RelevanceRequest,
    Turn,
)

DRAFT_TOKENS: Final = 256
"""Longest background document or summary: two hundred words, as the prompt of the latter says. Tokens."""

_CHARACTERS: Final = 2
"""Characters that count as a token: more tokens than most texts have, because nothing is tokenised yet."""
_QUESTION: Final = 64
"""Tokens that are read of a contextual question; the others are cut."""
_PIECE: Final = 100
"""Tokens that a further piece of a passage adds at least: the rest is the question, the title and overlap."""
_TEXT: Final = 64
"""Characters that are tokenised in the time of a token, also where the model reads less of them."""
_STEP: Final = 60
"""A step that writes one token of all rows that run together."""
_ROWS: Final = 64
"""Rows that run together."""
_ROW: Final = 4
"""A row of a step."""
_SOURCE: Final = 100
"""Tokens before a row that it looks at, in one step, in the time of a token."""


def of_judgement(request: RelevanceRequest, model: ModelDescription) -> int:
    """Return the tokens that judging all passages costs."""
    own = _size(request.question) + _turns_size(request.turns)
    most = _most_alone(model)
    return sum(_read(own + _passage_size(passage), most) for passage in request.passages)


def of_answers(requests: Iterable[GenerationRequest], model: ModelDescription) -> int:
    """Return the tokens that answers cost together, each with its augmentation; no two are equal.

    Passages that are read one by one are read once for each question.
    """
    read: dict[object, int] = {}
    written = rows = longest = 0
    for request in requests:
        own = _question_size(request)
        asked = request.contextual_question or request.question
        if request.augmentation is Augmentation.FUSION_IN_DECODER:
            most = _most_alone(model)
            own += _turns_size(request.turns) if request.template else 0  # the default shows none
            parts: dict[object, int] = {}
            spare = max(0, model.max_passage_pairs - len(request.passages))
            for one in request.passages:
                size = own + _passage_size(one)
                further = min(
                    spare, max(0, size // _CHARACTERS - most) // _PIECE + (size // _CHARACTERS > most)
                )
                spare -= further
                parts[asked, one.title, one.text] = _read(size, most) + further * most
        else:
            size = own + _turns_size(request.turns) + sum(map(_passage_size, request.passages))
            parts = {request: _read(size, model.max_input_tokens)}
        read |= {key: max(cost, read.get(key, 0)) for key, cost in parts.items()}
        drafts = request.augmentation in (Augmentation.PARAMETRIC_KNOWLEDGE, Augmentation.COMPRESSION)
        steps = request.decoding.max_new_tokens + (DRAFT_TOKENS if drafts else 0)
        beams = request.decoding.num_beams
        written += steps * beams * (_ROW + sum(parts.values()) // _SOURCE)
        rows += beams
        longest = max(longest, steps)
    return sum(read.values()) + written + longest * _STEP * -(-rows // _ROWS)


def _read(size: int, most: int) -> int:
    """Return the cost of text of ``size`` characters for a model that reads at most ``most`` tokens of it."""
    return 1 + min(most, size // _CHARACTERS) + size // _TEXT


def _most_alone(model: ModelDescription) -> int:
    return model.max_passage_tokens or model.max_input_tokens


def _question_size(request: GenerationRequest) -> int:
    """Return the characters of the question; of a contextual one those that are read, and its tokens."""
    size = _size(request.contextual_question)
    read = min(size, _CHARACTERS * (_QUESTION + size // _TEXT))
    return max(_size(request.question), read)


def _turns_size(turns: Iterable[Turn]) -> int:
    return sum(_size(one.question) + _size(one.answer) for one in turns)


def _size(text: str) -> int:
    """Return the characters of a text; two for each where not all are of ASCII, which have more tokens."""
    return len(text) if text.isascii() else 2 * len(text)


def _passage_size(passage: Passage) -> int:
    return _size(passage.title) + _size(passage.text)
