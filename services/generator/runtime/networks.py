"""What the decoding loop needs of a network: read prompts, begin answers, step all rows together.

Shapes: N rows of the batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from services.generator.runtime.sources import Part


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model reads.

    Attributes:
        rows: token rows, one for all passages or (Fusion-in-Decoder) one per passage.
        start: what a decoder beside an encoder is given to begin with.
        heads: tokens of each row before its passage, for models that tell them apart.
        dropped_passages: passages that did not fit, last ones first.
        cut_passages: passages cut at their end.
        dropped_turns: turns that did not fit, oldest first.
    """

    rows: tuple[tuple[int, ...], ...]
    start: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    dropped_passages: int = 0
    cut_passages: int = 0
    dropped_turns: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return sum(map(len, self.rows))


class Reading(Protocol):
    """A prompt being read."""

    computed: int
    """Tokens computed for it."""
    reused: int
    """Tokens whose encodings were there already."""

    @property
    def prompt(self) -> Prompt:
        """What is read."""
        ...

    @property
    def done(self) -> bool:
        """Whether the answer can begin."""
        ...


@dataclass(frozen=True, slots=True)
class Begun:
    """An answer about to be written.

    Attributes:
        logits: scores [V] of its first token; None if the prompt's start token is still to be stepped over.
        kept: self-attention keys and values [K, 2, A, L, D] of the decoder's own tokens so far.
        parts: what the decoder reads besides; empty for decoder-only models.
    """

    logits: Tensor | None
    kept: Tensor
    parts: Sequence[Part] = ()


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of the batch: per token of a row's own, and per token of a source."""

    own: int
    source: int


class Rows(Protocol):
    """The rows of a running batch."""

    def join(self, owner: int, begun: Begun, width: int) -> None:
        """Adds a request with ``width`` rows, all alike, at the end."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Scores [N, V] after every row's token [N]."""
        ...

    def settle(
        self, sources: Sequence[int], rows: Mapping[int, Sequence[int]], left: Mapping[int, int]
    ) -> None:
        """Row i becomes what row ``sources[i]`` was.

        Args:
            rows: rows of every request that stays.
            left: requests that left, and how many rows they had.
        """
        ...

    @property
    def bytes(self) -> int:
        """Size of what is held."""
        ...


class Network(Protocol):
    """A model as the loop computes it. Used from one thread."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        ...

    @property
    def normalised(self) -> bool:
        """Whether scores are log-probabilities already."""
        ...

    @property
    def footprint(self) -> Footprint:
        """What rows cost."""
        ...

    def read(self, prompt: Prompt) -> Reading:
        """Begins to read; computes nothing yet."""
        ...

    def advance(self, readings: Sequence[Reading], most_tokens: int) -> None:
        """Computes one pass over what is missing, the first readings first, of about ``most_tokens``."""
        ...

    def begin(self, readings: Sequence[Reading]) -> list[Begun]:
        """Begins the answers of readings that are done."""
        ...

    def judge(self, readings: Sequence[Reading]) -> Tensor:
        """Scores [B, V] of the first token after each of the readings, which are done."""
        ...

    def rows(self) -> Rows:
        """An empty batch."""
        ...

    def counts(self) -> tuple[int, int, int]:
        """Bytes of encodings kept, encodings found, encodings not found."""
        ...
