"""Keep a tokenizer's special tokens out of what users wrote.

A passage that holds ``</s>`` or ``<|assistant|>`` would end the prompt, or begin the model's turn, in the
middle of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self, TypeVar

from evenmesh_generator.domain import GenerationRequest, Passage, RelevanceRequest, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

R = TypeVar("R", GenerationRequest, RelevanceRequest)


class SpecialTokens:
    """The special tokens of a tokenizer.

    Args:
        pattern: finds each of them; None: there are none.
    """

    def __init__(self, pattern: re.Pattern[str] | None) -> None:
        self._pattern = pattern

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Self:
        """Return those of a tokenizer."""
        added = (str(one) for one in tokenizer.added_tokens_decoder.values() if one.special)
        names = sorted({*map(str, tokenizer.all_special_tokens), *added} - {""}, key=len, reverse=True)
        return cls(re.compile("|".join(map(re.escape, names))) if names else None)

    def escape(self, text: str) -> str:
        """Return the text with a blank after the first character of each special token."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda token: f"{token[0][0]} {token[0][1:]}", text)

    def escape_request(self, request: R) -> R:
        """Return the request with question, passages and turns escaped."""
        return replace(
            request,
            question=self.escape(request.question),
            passages=self._passages(request.passages),
            turns=tuple(Turn(self.escape(one.question), self.escape(one.answer)) for one in request.turns),
        )

    def _passages(self, passages: Sequence[Passage]) -> tuple[Passage, ...]:
        return tuple(Passage(one.id, self.escape(one.title), self.escape(one.text)) for one in passages)
