"""The decoding loop's port to a network: read prompts, start answers, step all rows together.

Shapes: N rows of the batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from evenmesh_generator.pointer.tokenization import Block

Part = Mapping[str, Tensor]
"""Named tensors of some source tokens: ``states`` [K, 2, A, S, D], and what else the model needs, [S, …]."""


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
        cut_question: whether only a part of the question is read.
        tenant: owner of what is kept of it.
        spans: texts of which the answer must be a span, or an abstention; None: it may be anything.
        shown: with ``spans`` the tokens of each passage's text that are read.
    """

    rows: tuple[tuple[int, ...], ...]
    start: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    dropped_passages: int = 0
    cut_passages: int = 0
    dropped_turns: int = 0
    cut_question: bool = False
    tenant: str = ""
    spans: tuple[Block, ...] | None = None
    shown: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Return the tokens of all rows."""
        return sum(map(len, self.rows))


class Prefill(Protocol):
    """A prompt being read."""

    computed: int
    """Tokens computed for it."""
    reused: int
    """Tokens whose encodings were cached."""

    @property
    def prompt(self) -> Prompt:
        """Return the prompt."""

    @property
    def done(self) -> bool:
        """Return whether the answer can begin."""


@dataclass(slots=True)
class ReadPrompt:
    """A prompt that was read: a :class:`Prefill` that holds nothing of what was computed any more."""

    prompt: Prompt
    computed: int
    reused: int
    done: bool = True


P = TypeVar("P", bound=Prefill)


@dataclass(frozen=True, slots=True)
class DecoderStart:
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
class Joining:
    """A request that joins with ``width`` equal rows; each has at most ``most`` tokens at its end."""

    owner: int
    started: DecoderStart
    width: int
    most: int


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request needs of the batch: rows, the most tokens of each, and source tokens that all read."""

    rows: int
    own: int
    source: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a model's keys and values take.

    Attributes:
        own: per token of a row's own. Bytes.
        source: per token of a source. Bytes.
        read: per prompt token, of a request that has not joined. Bytes.
        layers: buffers that the batch has, of equal size; one more exists while they are replaced.
    """

    own: int
    source: int
    read: int
    layers: int

    def batch(self, own_tokens: int, source_tokens: int) -> int:
        """Return the bytes of a batch with buffers of so many tokens, while one of them is replaced."""
        held = own_tokens * self.own + source_tokens * self.source
        return held + -(-held // self.layers)


class Rows(Protocol):
    """The rows of a running batch."""

    def planned(self, joining: Sequence[Demand]) -> int:
        """Return the most bytes that the batch has while and after these requests join."""

    def join(self, joining: Sequence[Joining]) -> None:
        """Add requests' rows at the end, in order: all, or none if it raises."""

    def step(self, tokens: Sequence[int], /) -> Tensor:
        """Return scores [N, V] after every row's token."""

    def settle(
        self, sources: Sequence[int], rows: Mapping[int, Sequence[int]], left: Mapping[int, int]
    ) -> None:
        """Let row i become what row ``sources[i]`` was.

        Args:
            rows: rows of every request that stays.
            left: requests that left, and how many rows they had.
        """

    @property
    def bytes(self) -> int:
        """Return the size of the held data."""


class Network(Protocol[P]):
    """A model as the loop computes it, with prompts that it reads in its own way. Used from one thread."""

    @property
    def device(self) -> torch.device:
        """Return the device it computes on."""

    @property
    def normalised(self) -> bool:
        """Return whether scores are log-probabilities already."""

    @property
    def footprint(self) -> Footprint:
        """Return what rows cost."""

    def prefill(self, prompt: Prompt) -> P:
        """Start to read a prompt; compute nothing yet."""

    def advance(self, prefills: Sequence[P], most_tokens: int) -> None:
        """Compute one pass of about ``most_tokens`` over what is missing, in the order of ``prefills``."""

    def begin(self, prefills: Sequence[P]) -> list[DecoderStart]:
        """Start the answers of prefills that are done."""

    def judge(self, prefills: Sequence[P]) -> Tensor:
        """Return scores [B, V] of the first token after each of the readings, which are done."""

    def rows(self) -> Rows:
        """Return an empty batch."""

    def counts(self) -> tuple[int, int, int]:
        """Return the bytes of encodings kept, encodings found, encodings not found."""
