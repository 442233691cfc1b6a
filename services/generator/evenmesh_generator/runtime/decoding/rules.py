"""A model's own rules for its answers: forced and forbidden tokens, least lengths, no repetition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor

from evenmesh_kit.compute.placement import upload

if TYPE_CHECKING:
    from evenmesh_generator.pointer.tokenization import Block

Processor = Callable[[Tensor, Tensor], Tensor]
"""Takes tokens [B, L] and scores [B, V] of the next ones; returns other scores. Those of transformers do."""


class Rules:
    """Makes the logits processors of one request.

    Args:
        pad: token of padding.
        ends: tokens that end an answer.
        length_penalty: exponent of the length that beams' scores are divided by.
        early_stopping: when beams stop, as transformers has it.
        forces_end: whether an answer that runs out of length gets an end token.
        made: makes a model's own processors, given the tokens before the answer, the longest answer, the
            beams and what the encoder read; None: it has none.
        copying: makes the processor of an answer that is a span, given the tokens before it and the texts
            that it may be copied from; None if the model's answers never are.
    """

    def __init__(
        self,
        *,
        pad: int,
        ends: Sequence[int],
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
        forces_end: bool = False,
        made: Callable[[int, int, int, Sequence[int]], Sequence[Processor]] | None = None,
        copying: Callable[[int, Sequence[Block]], Processor] | None = None,
    ) -> None:
        self.pad = pad
        self.ends = frozenset(ends)
        self.length_penalty = length_penalty
        self.early_stopping = early_stopping
        self.forces_end = forces_end
        self._copying = copying
        self._made = made if made is not None and made(1, 1, 1, (0,)) else None

    @property
    def any(self) -> bool:
        """Return whether the model has rules of its own."""
        return self._made is not None

    def processors(
        self,
        prompt: int,
        most_tokens: int,
        rows: int,
        source: Sequence[int],
        spans: Sequence[Block] | None = None,
    ) -> Sequence[Processor] | None:
        """Return the processors of one request; None if there are no rules for it.

        Args:
            prompt: tokens the answer is written behind.
            most_tokens: longest answer.
            rows: beams.
            source: what the encoder read.
            spans: texts of which the answer must be a span; None: it may be anything.
        """
        made = [] if self._made is None else list(self._made(prompt, most_tokens, rows, source))
        if spans is not None and self._copying is not None:
            made.append(self._copying(prompt, spans))
        return made or None


@runtime_checkable
class TokenChoice(Protocol):
    """A logits processor that leaves the scores of some tokens as they are, and takes all others away.

    It reads tokens on the host: nothing waits for the device to hand them over.
    """

    def process(self, ids: Sequence[Sequence[int]], scores: Tensor) -> Tensor:
        """Return scores [B, V] of the next tokens of rows that read ``ids`` so far."""

    def allowed(self, ids: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the tokens that may follow in each row, ascending and never none, after ``ids`` read so
        far.
        """


def only_choice(processors: Sequence[Processor] | None) -> TokenChoice | None:
    """Return the one processor of a request if it does nothing but choose; None otherwise.

    What it lets through is a few hundred of tens of thousands of tokens: the others need not be looked at.
    """
    if processors is None or len(processors) != 1:
        return None
    only: Any = processors[0]
    return only if isinstance(only, TokenChoice) else None


def apply(processors: Sequence[Processor], ids: Sequence[Sequence[int]], scores: Tensor) -> Tensor:
    """Return scores [B, V] after the processors of one request, whose rows read ``ids`` so far."""
    rows: Tensor | None = None
    one: Any
    for one in processors:
        if isinstance(one, TokenChoice):
            scores = one.process(ids, scores)
            continue
        if rows is None:
            rows = upload([list(row) for row in ids], scores.device)
        scores = one(rows, scores)
    return scores
