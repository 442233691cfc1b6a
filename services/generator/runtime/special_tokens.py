"""Texts that a tokenizer reads as tokens of its own, kept out of what others wrote.

A passage that holds ``</s>`` or ``<|assistant|>`` would end the prompt, or begin the model's turn, in the
middle of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from transformers import PreTrainedTokenizerBase

from services.generator.domain import GenerationRequest, Passage, RelevanceRequest, Turn

R = TypeVar("R", GenerationRequest, RelevanceRequest)


class SpecialTokens:
    """The special tokens of a tokenizer.

    Args:
        tokenizer: the tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        added = (str(one) for one in tokenizer.added_tokens_decoder.values() if one.special)
        names = sorted({*map(str, tokenizer.all_special_tokens), *added} - {""}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, names))) if names else None

    def broken(self, text: str) -> str:
        """The text with a blank behind the first character of each special token; any other as it is."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda token: f"{token[0][0]} {token[0][1:]}", text)

    def broken_in(self, request: R) -> R:
        """The request with question, passages and turns so."""
        return replace(
            request,
            question=self.broken(request.question),
            passages=self._passages(request.passages),
            turns=tuple(Turn(self.broken(one.question), self.broken(one.answer)) for one in request.turns),
        )

    def _passages(self, passages: Sequence[Passage]) -> tuple[Passage, ...]:
        return tuple(Passage(one.id, self.broken(one.title), self.broken(one.text)) for one in passages)
