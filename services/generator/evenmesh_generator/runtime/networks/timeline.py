"""Self-attention keys and values of every row of the running batch.

One time axis for all rows, aligned at its newest end: a step writes one column for all, attention reads one
slice, and nothing is put together per step. A row that joined late is masked on its left.

Shapes: N rows, K layers, A heads, D head size, W the columns in use.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Timeline:
    """Keys and values, and how many tokens each row has. Used from one thread."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0)  # [K, 2, slots, A, capacity, D]
        self._end = 0
        self._width = 0
        self._lengths: list[int] = []
        self._bound: tuple[Tensor | None, bool] = (None, False)

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
        """Return the size of the buffer."""
        return self._buffer.nbytes

    def insert(self, kept: Tensor, copies: int) -> None:
        """Add ``copies`` rows at the end, each with the keys and values ``kept`` [K, 2, A, L, D]."""
        layers, _, heads, length, size = kept.shape
        rows = len(self._lengths)
        if rows == 0:
            self._end = self._width = 0
        slots, capacity = (
            (self._buffer.shape[2], self._buffer.shape[4]) if self._buffer.dim() == 6 else (0, 0)
        )
        end = max(self._end, length)
        if self._buffer.dim() != 6 or rows + copies > slots or end > self._end or end + 1 > capacity:
            want = max(length, self._width)
            capacity = _power(max(2 * want, 16))
            like = self._buffer if rows else kept
            fresh = like.new_zeros(
                (layers, 2, _power(max(rows + copies, 4)), heads, capacity, size), dtype=kept.dtype
            )
            if rows:
                fresh[:, :, :rows, :, want - self._width : want] = self._view()
            self._buffer, end = fresh, want
        self._end = end
        self._buffer[:, :, rows : rows + copies, :, end - length : end] = kept.unsqueeze(2)
        self._lengths += [length] * copies
        self._trim()

    def reserve(self) -> None:
        """Make room for the next column."""
        capacity = self._buffer.shape[4]
        if self._end < capacity:
            return
        width, rows = self._width, len(self)
        kept = self._view().clone()
        if 2 * width > capacity:
            shape = list(self._buffer.shape)
            shape[4] = 2 * capacity
            self._buffer = self._buffer.new_zeros(shape)
        self._buffer[:, :, :rows, :, :width] = kept
        self._end = width

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new token's keys and values [N, A, 1, D] of one layer; return all, [N, A, W + 1, D]."""
        rows, at = len(self), self._end
        mine = self._buffer[layer]
        mine[0, :rows, :, at] = keys[:, :, 0]
        mine[1, :rows, :, at] = values[:, :, 0]
        seen = mine[:, :rows, :, at - self._width : at + 1]
        return seen[0], seen[1]

    def mask(self, dtype: torch.dtype) -> Tensor | None:
        """Return additive mask [N, 1, 1, W + 1] of the next step; None if every row sees every column."""
        width = self._width
        if min(self._lengths) == width:
            return None
        blank = torch.tensor([width - length for length in self._lengths], device=self._buffer.device)
        columns = torch.arange(width + 1, device=self._buffer.device)
        hidden = (columns < blank[:, None]).to(dtype)
        return (hidden * torch.finfo(dtype).min)[:, None, None, :]

    def advance(self) -> None:
        """End the step: every row is one token longer."""
        self._end += 1
        self._lengths = [length + 1 for length in self._lengths]
        self._width += 1

    def rearrange(self, sources: Sequence[int]) -> None:
        """Let row i become what row ``sources[i]`` was; rows beyond go."""
        moved = [(to, source) for to, source in enumerate(sources) if to != source]
        if moved:
            begin = self._end - self._width
            to = torch.tensor([pair[0] for pair in moved], device=self._buffer.device)
            source = torch.tensor([pair[1] for pair in moved], device=self._buffer.device)
            window = self._buffer[:, :, :, :, begin : self._end]
            window.index_copy_(2, to, window.index_select(2, source))
        self._lengths = [self._lengths[source] for source in sources]
        self._trim()

    def _view(self) -> Tensor:
        return self._buffer[:, :, : len(self._lengths), :, self._end - self._width : self._end]

    def _trim(self) -> None:
        self._width = max(self._lengths, default=0)
        if not self._lengths:
            self._buffer = torch.empty(0)


def _power(least: int) -> int:
    """Return the least power of two that is no smaller."""
    return 1 << (least - 1).bit_length()
