"""A model that computes where it is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from meshkit.errors import MeshError
from services.generator.domain import Answer, GenerationRequest, ModelDescription, Normalization, Passage
from services.generator.ports import Cancellation

Emit = Callable[[str], None]


class ComputedModel(Protocol):
    """A model that computes where it is called; called from several threads at once.

    The methods mean what those of :class:`~services.generator.ports.LanguageModel` do.
    """

    def describe(self) -> ModelDescription: ...

    def stream(self, request: GenerationRequest, cancel: Cancellation, emit: Emit) -> Answer:
        """Writes one answer and hands each piece of text to ``emit`` as soon as it is there."""
        ...

    def batch(
        self, requests: Sequence[GenerationRequest], cancel: Cancellation
    ) -> list[Answer | MeshError]: ...

    def relevance(
        self, question: str, passages: Sequence[Passage], normalization: Normalization, cancel: Cancellation
    ) -> list[float]: ...
