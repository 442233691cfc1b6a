"""How a request ends, and who is told."""

from __future__ import annotations

from typing import Protocol

from meshkit.errors import MeshError
from services.generator.domain import Answer
from services.generator.ports import Cancelled

Outcome = Answer | MeshError | Cancelled
"""How a request ends."""


class Listener(Protocol):
    """Whom the engine tells of one request. Called on the engine's own thread: must return at once."""

    def on_delta(self, text: str) -> None:
        """More text; never empty."""
        ...

    def on_end(self, outcome: Outcome) -> None:
        """The last call: the answer, whose text is all deltas joined, or why there is none."""
        ...
