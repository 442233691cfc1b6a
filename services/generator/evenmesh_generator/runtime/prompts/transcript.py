"""The text of an answer, token by token."""

from __future__ import annotations

from typing import Protocol


class Transcript(Protocol):
    """Text of one answer as its tokens come; the pieces joined are :attr:`text`."""

    def push(self, token: int) -> str:
        """Return the text that a token completes; may be empty."""

    def finish(self) -> str:
        """Return the text held back."""

    @property
    def text(self) -> str:
        """Return all text so far."""
