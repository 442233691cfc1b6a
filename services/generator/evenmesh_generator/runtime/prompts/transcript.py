"""The text of an answer, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from evenmesh_generator.domain import Span


class Transcript(Protocol):
    """Text of one answer as its tokens come; the pieces joined are :attr:`text`."""

    def push(self, token: int) -> str:
        """Return the text that a token completes; may be empty."""

    def finish(self) -> str:
        """Return the text held back."""

    @property
    def text(self) -> str:
        """Return all text so far."""

    @property
    def ended(self) -> bool:
        """Return whether the text is complete, whatever the model writes after it."""

    @property
    def span(self) -> Span | None:
        """Return where the finished text stands; None unless it is copied from one passage."""

    def confidence(self, log_probabilities: Sequence[float]) -> float | None:
        """Return the probability that the finished answer is right, given those of its tokens in nats.

        None of models that have no calibration.
        """
