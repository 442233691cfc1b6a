"""The text of an answer, token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from services.generator.pointer.grounding import Grounder
from services.generator.runtime.detokenizer import IncrementalDetokenizer


class Transcript(Protocol):
    """Text of one answer as its tokens come; the pieces joined are :attr:`text`."""

    def push(self, token: int) -> str:
        """The text that a token completes; may be empty."""
        ...

    def finish(self) -> str:
        """What was held back."""
        ...

    @property
    def text(self) -> str:
        """All text so far."""
        ...


class Detokenized:
    """The tokenizer's own text.

    Args:
        decode: text of token ids, as the whole answer would be decoded.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._pieces = IncrementalDetokenizer(decode)

    def push(self, token: int) -> str:
        """The text that a token completes."""
        return self._pieces.push(token)

    def finish(self) -> str:
        """Half characters, if the answer ends with some."""
        return self._pieces.finish()

    @property
    def text(self) -> str:
        """All text so far."""
        return self._pieces.text


class Grounded:
    """Text in the passages' own letters."""

    def __init__(self, grounder: Grounder) -> None:
        self._grounder = grounder

    def push(self, token: int) -> str:
        """The text that a token adds."""
        return self._grounder.feed(token)

    def finish(self) -> str:
        """Nothing is ever held back."""
        return ""

    @property
    def text(self) -> str:
        """All text so far."""
        return self._grounder.text
