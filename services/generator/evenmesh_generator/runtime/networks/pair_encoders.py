"""Encode the pairs of the pointer model: what its decoder reads of a question and a passage.

Shapes: L tokens of a pair, H hidden, A heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor

from evenmesh_generator.pointer.compiled_encoder import CompiledPointerEncoder
from evenmesh_generator.pointer.tokenization import PAD
from evenmesh_kit.compute.lengths import by_length, rows_at_once
from evenmesh_kit.compute.weights import narrow

if TYPE_CHECKING:
    from evenmesh_generator.pointer.modeling import PointerForConditionalGeneration

Row = tuple[int, ...]


@dataclass(frozen=True)
class EncodedPair:
    """A pair as the decoder reads it.

    Attributes:
        projected: cross-attention keys and values of every layer, ``[layers, 2, A, L, D]``.
        copy_keys: keys of the copy attention, ``[L, H]``.
        states: last hidden states, ``[L, H]``.
    """

    projected: Tensor
    copy_keys: Tensor
    states: Tensor


class PairEncoder(Protocol):
    """Encodes pairs of the pointer model."""

    def encode(self, rows: Sequence[Row], heads: Sequence[int]) -> Iterable[tuple[int, EncodedPair]]:
        """Yield the place of each row, in any order, and what it became.

        Args:
            rows: tokens of the pairs, at least three each.
            heads: at which token of each its passage begins.
        """


class TorchPairEncoder:
    """Encodes with the model itself, pairs of similar length together.

    Args:
        model: in float32, where it shall compute; weights that encode are converted in place.
        dtype: type of the arithmetic; bfloat16 encodes under autocast.
        batch_tokens: most padded tokens of a pass.
    """

    def __init__(
        self, model: PointerForConditionalGeneration, *, dtype: torch.dtype, batch_tokens: int
    ) -> None:
        self._model = model
        self._dtype = dtype
        self._batch_tokens = batch_tokens
        self._rows = rows_at_once(str(model.device))
        if dtype is torch.bfloat16:
            crossing = [cast(Any, layer).crossattention.self for layer in model.decoder.layers]
            projections = [getattr(one, name) for one in crossing for name in ("key", "value")]
            narrow([model.encoder, *projections], dtype)

    def encode(self, rows: Sequence[Row], heads: Sequence[int]) -> Iterator[tuple[int, EncodedPair]]:
        """See the port."""
        for chosen in by_length([len(row) for row in rows], self._batch_tokens, size=self._rows):
            pairs = self._together([rows[at] for at in chosen], [heads[at] for at in chosen])
            yield from zip(chosen, pairs, strict=True)

    def _together(self, rows: Sequence[Row], heads: Sequence[int]) -> list[EncodedPair]:
        lengths = torch.tensor([len(row) for row in rows])[:, None]
        longest = int(lengths.max())
        ids = torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows])
        at = torch.arange(longest)
        mask = at < lengths
        types = ((at >= torch.tensor(heads)[:, None]) & mask).long()
        device = self._model.device
        with torch.autocast(device.type, torch.bfloat16, enabled=self._dtype is torch.bfloat16):
            source = self._model.encoder(ids.to(device), mask.to(device), types.to(device))
            projected = self._model.decoder.project(source.last_hidden_state)
        states = torch.stack([torch.stack(pair) for pair in projected]).to(self._dtype)
        return [
            EncodedPair(
                states[:, :, place, :, : len(row)].clone(),
                source.copy_keys[place, : len(row)].clone(),
                source.last_hidden_state[place, : len(row)].clone(),
            )
            for place, row in enumerate(rows)
        ]


class CompiledPairEncoder:
    """Encodes with OpenVINO, so that nothing depends on what else is asked.

    Args:
        compiled: computes.
        layers: cross-attention layers of the decoder.
        heads: heads of one.
        dtype: type of what the decoder reads.
    """

    def __init__(
        self, compiled: CompiledPointerEncoder, *, layers: int, heads: int, dtype: torch.dtype
    ) -> None:
        self._compiled = compiled
        self._shape = (layers, 2, heads)
        self._dtype = dtype

    def encode(self, rows: Sequence[Row], heads: Sequence[int]) -> Iterator[tuple[int, EncodedPair]]:
        """See the port."""
        for place, found in enumerate(self._compiled.encode(rows, heads)):
            projected, copy_keys, states = (torch.from_numpy(one) for one in found)
            shaped = projected.view(len(rows[place]), *self._shape, -1).permute(1, 2, 3, 0, 4)
            yield (
                place,
                EncodedPair(
                    shaped.to(self._dtype).contiguous(), copy_keys.to(self._dtype).contiguous(), states
                ),
            )
