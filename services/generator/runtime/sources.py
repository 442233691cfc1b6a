"""What decoders of encoder–decoders read: encoded passages, once for all beams of a request.

Shapes: R requests on a shelf, w rows of each, S source tokens of the longest, A heads, D head size, K layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

Part = Mapping[str, Tensor]
"""Named tensors of some source tokens: ``states`` [K, 2, A, S, D], and what else the model needs, [S, …]."""

STATES = "states"
"""Name of the cross-attention keys and values."""

_TOKENS = {STATES: 3}
"""Which axis of a field is the tokens', where not the first: attention reads a head's keys in a row."""


class Shelf:
    """Sources of requests that have equally many rows, side by side."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.owners: list[int] = []
        self.lengths: list[int] = []
        self.index: Tensor | None = None
        """Rows of the batch [R·w], requests one after the other; None: all rows in order."""
        self._fields: dict[str, Tensor] = {}
        self._mask: Tensor | None = None

    def add(self, owner: int, parts: Sequence[Part]) -> None:
        """Puts one request's passages side by side."""
        length = sum(part[STATES].shape[_TOKENS[STATES]] for part in parts)
        at = len(self.owners)
        longest = max([length, *self.lengths])
        for name, example in parts[0].items():
            axis = _TOKENS.get(name, 0)
            field = self._fields.get(name)
            if field is None or at >= field.shape[0] or longest > field.shape[axis + 1]:
                slots = max(4 if self.width == 1 else 2, 2 * at)
                shape = [slots, *example.shape]
                shape[axis + 1] = -(-longest // 64) * 64
                fresh = example.new_empty(shape)  # a request's padding is zeroed with it
                if field is not None and at:
                    room = min(field.shape[axis + 1], shape[axis + 1])
                    fresh[:at].narrow(axis + 1, 0, room).copy_(field[:at].narrow(axis + 1, 0, room))
                    fresh[:at].narrow(axis + 1, room, shape[axis + 1] - room).zero_()
                self._fields[name] = field = fresh
            row = field[at]
            begin = 0
            for part in parts:
                size = part[name].shape[axis]
                row.narrow(axis, begin, size).copy_(part[name])
                begin += size
            row.narrow(axis, begin, row.shape[axis] - begin).zero_()
        self.owners.append(owner)
        self.lengths.append(length)
        self._remask()

    def remove(self, owner: int) -> None:
        """Takes a request's source away; the last one moves into its place."""
        at, last = self.owners.index(owner), len(self.owners) - 1
        if at != last:
            for field in self._fields.values():
                field[at] = field[last]
            self.owners[at], self.lengths[at] = self.owners[last], self.lengths[last]
        self.owners.pop()
        self.lengths.pop()
        if self.owners:
            self._remask()
        else:
            self._fields.clear()

    def field(self, name: str) -> Tensor:
        """A field of every request, [R, S, …] (:data:`STATES` [R, K, 2, A, S, D])."""
        mine = self._fields[name][: len(self.owners)]
        return mine.narrow(_TOKENS.get(name, 0) + 1, 0, max(self.lengths))

    @property
    def visible(self) -> Tensor | None:
        """True on source tokens [R, S]; None if there is no padding."""
        return self._mask

    def attend(self, layer: int, queries: Tensor, scale: float) -> Tensor:
        """Cross-attention of ``queries`` [R·w, A, 1, D]; alike in shape."""
        states = self.field(STATES)[:, layer]
        keys, values = states[:, 0], states[:, 1]
        rows, heads, _, size = queries.shape
        folded = queries.reshape(-1, self.width, heads, size).transpose(1, 2)
        mask = None if self._mask is None else self._mask[:, None, None, :]
        found = functional.scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scale)
        return found.transpose(1, 2).reshape(rows, heads, 1, size)

    @property
    def bytes(self) -> int:
        """Size of the buffers."""
        return sum(field.nbytes for field in self._fields.values())

    def _remask(self) -> None:
        longest = max(self.lengths)
        if min(self.lengths) == longest:
            self._mask = None
            return
        device = self._fields[STATES].device
        lengths = torch.tensor(self.lengths, device=device)
        self._mask = torch.arange(longest, device=device) < lengths[:, None]


class Sources:
    """Every shelf, and which rows of the batch belong to it."""

    def __init__(self) -> None:
        self._shelves: dict[int, Shelf] = {}

    def add(self, owner: int, width: int, parts: Sequence[Part]) -> None:
        """Adds the source of a request with ``width`` rows."""
        self._shelves.setdefault(width, Shelf(width)).add(owner, parts)

    def remove(self, owner: int, width: int) -> None:
        """Takes it away."""
        shelf = self._shelves[width]
        shelf.remove(owner)
        if not shelf.owners:
            del self._shelves[width]

    def place(self, rows: Mapping[int, Sequence[int]], device: torch.device) -> None:
        """Tells where the rows of every request are; to be called after every change."""
        total = sum(map(len, rows.values()))
        for shelf in self._shelves.values():
            flat = [row for owner in shelf.owners for row in sorted(rows[owner])]
            in_order = flat == list(range(total))
            shelf.index = None if in_order else torch.tensor(flat, device=device)

    @property
    def shelves(self) -> list[Shelf]:
        """Every shelf that holds something."""
        return list(self._shelves.values())

    def attend(self, layer: int, queries: Tensor, scale: float) -> Tensor:
        """Cross-attention of all rows: ``queries`` [N, A, 1, D]; alike in shape."""
        found: Tensor | None = None
        for shelf in self._shelves.values():
            if shelf.index is None:
                return shelf.attend(layer, queries, scale)
            if found is None:
                found = torch.empty_like(queries)
            found.index_copy_(
                0, shelf.index, shelf.attend(layer, queries.index_select(0, shelf.index), scale)
            )
        assert found is not None, "every row has a source"  # noqa: S101
        return found

    @property
    def bytes(self) -> int:
        """Size of all buffers."""
        return sum(shelf.bytes for shelf in self._shelves.values())
