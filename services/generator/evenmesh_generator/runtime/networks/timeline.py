"""Self-attention keys and values of every row of the running batch.

One time axis for all rows, aligned at its newest end: a step writes one column for all, attention reads one
slice, and nothing is put together per step. A row that joined late is masked on its left.

Every layer has a buffer of its own, of the rows and columns that the rows need until they end, rounded up to
blocks, or of fewer columns at first. Buffers are replaced one after the other, so that the old and the new
ones never all exist together.

Shapes: N rows, K layers, A heads, D head size, W the columns in use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Self

import torch
from torch import Tensor
from torch.nn import functional

from evenmesh_kit.compute.placement import upload

_ROWS: Final = 4
"""Rows are added in blocks of so many; up to so many they are counted singly."""

_COLUMNS: Final = 16
_LONG: Final = 256
_LONG_COLUMNS: Final = 64
"""Columns are added in blocks; in larger ones where rows have more than :data:`_LONG` tokens. There is always
a block more than rows need, so that the columns in use move to the front once a block, not at every step."""

_SPARE: Final = 1.5
"""Buffers that are larger than this many times what rows need are replaced when the next row joins."""

_BESIDE: Final = 64
"""Columns before those in use that a step may read in whole blocks."""

_FIRST: Final = 128
"""Columns that growing buffers have at first, where rows need more until they end."""


class Timeline:
    """Keys and values, and how many tokens each row has. Used from one thread.

    A row that cannot be added for want of memory leaves the others as they were.

    Args:
        grows: whether buffers begin with few columns, and get twice as many once these are full: answers that
            end early never take what they were promised. If not, rows have all of it when they join.
    """

    def __init__(self, *, grows: bool) -> None:
        self._grows = grows
        self._layers: list[_Layer] = []
        self._width = 0
        self._lengths: list[int] = []
        self._mosts: list[int] = []

    @classmethod
    def on(cls, device: torch.device) -> Self:
        """Return an empty timeline for a device.

        On a CPU it grows: most answers are far shorter than they may be, and what their buffers do not take
        is neither cleared nor left to the allocator in pieces. On a GPU a step that finds no memory would end
        all answers, so that buffers are as large as promised when rows join.
        """
        return cls(grows=device.type == "cpu")

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._lengths)

    @property
    def lengths(self) -> Sequence[int]:
        """Return the tokens of every row."""
        return self._lengths

    @property
    def width(self) -> int:
        """Return the columns in use: tokens of the longest row."""
        return self._width

    @property
    def bytes(self) -> int:
        """Return the size of the buffers."""
        return sum(layer.buffer.nbytes for layer in self._layers)

    def planned(self, joining: Sequence[tuple[int, int]]) -> int:
        """Return the most tokens that the buffers have room for, from now on, once more rows have joined.

        Args:
            joining: how many rows, and the most tokens of each.
        """
        rows = len(self) + sum(copies for copies, _ in joining)
        promised = self._promised(rows, max((most for _, most in joining), default=0))
        stays = not joining or self._suits(rows, promised)
        return max(math.prod(promised), math.prod(self._held) if stays else 0)

    def insert(self, joining: Sequence[tuple[Tensor, int, int]]) -> None:
        """Add rows at the end: all of them, or none if there is no memory for them.

        Args:
            joining: keys and values [K, 2, A, L, D], how many rows have them, and the most tokens that each
                row will have; buffers grow once a row has more.
        """
        before, rows = len(self), len(self) + sum(copies for _, copies, _ in joining)
        longest = max([self._width, *(kept.shape[3] for kept, _, _ in joining)])
        promised = self._promised(rows, max([longest, *(most for _, _, most in joining)]))
        in_place = all(longest <= layer.end < layer.capacity for layer in self._layers)
        stays = self._suits(rows, promised) and (in_place or not self._grows)
        slots, capacity = self._held if stays else self._begun(promised, longest)
        if not self._layers:
            layers, _, heads, _, size = joining[0][0].shape
            self._layers = [_Layer(joining[0][0].new_empty((2, 0, heads, 0, size))) for _ in range(layers)]
        try:
            for layer in self._layers:
                if layer.shape != (slots, capacity) or not longest <= layer.end < capacity:
                    layer.rebuild(slots, capacity, before, self._width, longest)
                else:
                    layer.clear(before, rows, self._width, longest)
        except Exception:
            self._trim()
            raise
        for kept, copies, most in joining:
            at, length = len(self), kept.shape[3]
            for layer, own in zip(self._layers, kept, strict=True):
                layer.buffer[:, at : at + copies, :, layer.end - length : layer.end] = own.unsqueeze(1)
            self._lengths += [length] * copies
            self._mosts += [max(most, length)] * copies
        self._trim()

    def remove_last(self, copies: int) -> None:
        """Remove the rows that were added last."""
        del self._lengths[len(self) - copies :], self._mosts[len(self._mosts) - copies :]
        self._trim()

    def reserve(self) -> None:
        """Make room for the next column."""
        full = [layer for layer in self._layers if layer.end == layer.capacity]
        if not full:
            return
        self._mosts = [max(most, length + 1) for most, length in zip(self._mosts, self._lengths, strict=True)]
        slots, capacity = self._begun(self._promised(len(self), 0), self._width)
        for layer in full:
            layer.rebuild(slots, capacity, len(self), self._width, self._width)

    def write(self, layer: int, keys: Tensor, values: Tensor, *, block: int = 1) -> tuple[Tensor, Tensor]:
        """Write the new token's keys and values [N, A, 1, D] of one layer; return all, [N, A, W + 1, D].

        Args:
            layer: its number.
            keys: of the new token.
            values: of the new token.
            block: columns are returned in whole blocks, with zeros before the first, [1, 64]. A processor
                computes what fills no block in another order, so that a row's sums would depend on how long
                others are.
        """
        rows, mine = len(self), self._layers[layer]
        at, buffer = mine.end, mine.buffer
        buffer[0, :rows, :, at] = keys[:, :, 0]
        buffer[1, :rows, :, at] = values[:, :, 0]
        begin = at + 1 - _whole(self._width + 1, block)
        seen = buffer[:, :rows, :, max(0, begin) : at + 1]
        if begin < 0:
            seen = functional.pad(seen, (0, 0, -begin, 0))
        return seen[0], seen[1]

    def mask(self, dtype: torch.dtype, *, block: int = 1) -> Tensor | None:
        """Return additive mask [N, 1, 1, W + 1] of the next step; None if every row sees every column.

        Args:
            dtype: its type.
            block: as of :meth:`write`.
        """
        width = _whole(self._width + 1, block) - 1
        if min(self._lengths) == width:
            return None
        device = self._layers[0].buffer.device
        blank = upload([width - length for length in self._lengths], device)
        columns = torch.arange(width + 1, device=device)
        hidden = (columns < blank[:, None]).to(dtype)
        return (hidden * torch.finfo(dtype).min)[:, None, None, :]

    def advance(self) -> None:
        """End the step: every row is one token longer."""
        for layer in self._layers:
            layer.end += 1
        self._lengths = [length + 1 for length in self._lengths]
        self._width += 1

    def rearrange(self, sources: Sequence[int]) -> None:
        """Let row i become what row ``sources[i]`` was; rows beyond go."""
        moved = [(to, source) for to, source in enumerate(sources) if to != source]
        if moved:
            device = self._layers[0].buffer.device
            to = upload([pair[0] for pair in moved], device)
            source = upload([pair[1] for pair in moved], device)
            for layer in self._layers:
                window = layer.buffer[:, :, :, layer.end - self._width : layer.end]
                window.index_copy_(1, to, window.index_select(1, source))
        self._lengths = [self._lengths[source] for source in sources]
        self._mosts = [self._mosts[source] for source in sources]
        self._trim()

    @property
    def _held(self) -> tuple[int, int]:
        """Return rows and columns of the buffers."""
        return self._layers[0].shape if self._layers else (0, 0)

    def _promised(self, rows: int, most: int) -> tuple[int, int]:
        """Return rows and columns that ``rows`` need until they end; new ones have ``most`` tokens then."""
        most = max([most, *self._mosts])
        block = _COLUMNS if most <= _LONG else _LONG_COLUMNS
        slots = rows if rows <= _ROWS else _whole(rows, _ROWS)
        return slots, _whole(most, block) + block

    def _begun(self, promised: tuple[int, int], width: int) -> tuple[int, int]:
        """Return rows and columns of new buffers with ``width`` columns in use."""
        slots, capacity = promised
        if self._grows:
            capacity = min(capacity, max(_FIRST, _whole(2 * width, _COLUMNS)))
        return slots, capacity

    def _suits(self, rows: int, promised: tuple[int, int]) -> bool:
        """Return whether the buffers may stay when ``rows`` need what is ``promised``."""
        slots, capacity = self._held
        room = rows <= slots and (self._grows or promised[1] <= capacity)
        return room and slots * capacity <= _SPARE * math.prod(promised)

    def _trim(self) -> None:
        self._width = max(self._lengths, default=0)
        if not self._lengths:
            self._layers = []


class _Layer:
    """The buffer [2, slots, A, capacity, D] of one layer; ``end``: the column of the next token."""

    def __init__(self, buffer: Tensor) -> None:
        self.buffer = buffer
        self.capacity = buffer.shape[3]
        self.end = 0

    @property
    def shape(self) -> tuple[int, int]:
        """Return its rows and columns."""
        return self.buffer.shape[1], self.capacity

    def clear(self, before: int, rows: int, width: int, longest: int) -> None:
        """Zero what ``rows`` will see before their own columns: earlier rows may have left it not finite.

        So much is zero already of the first ``before`` rows, of which the longest has ``width`` tokens.
        """
        begin = max(0, self.end - longest - _BESIDE)
        if longest > width:
            self.buffer[:, :before, :, begin : self.end - width].zero_()
        self.buffer[:, before:rows, :, begin : self.end].zero_()

    def rebuild(self, slots: int, capacity: int, rows: int, width: int, end: int) -> None:
        """Move the last ``width`` columns of ``rows`` into a buffer of another shape, to end at ``end``."""
        _, _, heads, _, size = self.buffer.shape
        # Zeros: what is masked is multiplied by zero, and nothing times zero is zero where it is not finite.
        fresh = self.buffer.new_zeros((2, slots, heads, capacity, size))
        if rows:
            fresh[:, :rows, :, end - width : end] = self.buffer[:, :rows, :, self.end - width : self.end]
        self.buffer, self.capacity, self.end = fresh, capacity, end


def _whole(count: int, block: int) -> int:
    """Return the least multiple of ``block`` that is no smaller."""
    return -(-count // block) * block
