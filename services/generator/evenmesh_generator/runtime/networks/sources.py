"""What decoders of encoder–decoders read: encoded passages, once for all beams of a request.

Shapes: R requests of a source group, w rows of each, S source tokens of the longest, A heads, D head
size, K layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from evenmesh_generator.runtime.networks.protocol import DecoderStart, Part
from evenmesh_generator.runtime.networks.timeline import Timeline

STATES = "states"
"""Name of the cross-attention keys and values."""

_TOKENS = {STATES: 3}
"""Which axis of a field is the tokens', where not the first: attention reads a head's keys in a row."""


class SourceGroup:
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
        """Put one request's passages side by side."""
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
        """Remove a request's source; the last one moves into its place."""
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
        """Return a field of every request, [R, S, …] (:data:`STATES` [R, K, 2, A, S, D])."""
        mine = self._fields[name][: len(self.owners)]
        return mine.narrow(_TOKENS.get(name, 0) + 1, 0, max(self.lengths))

    @property
    def visible(self) -> Tensor | None:
        """Return True on source tokens, [R, S]; None if there is no padding."""
        return self._mask

    def attend(self, layer: int, queries: Tensor, scale: float) -> Tensor:
        """Return the cross-attention of ``queries`` [R·w, A, 1, D], in the same shape."""
        states = self.field(STATES)[:, layer]
        keys, values = states[:, 0], states[:, 1]
        rows, heads, _, size = queries.shape
        folded = queries.reshape(-1, self.width, heads, size).transpose(1, 2)
        mask = None if self._mask is None else self._mask[:, None, None, :]
        found = functional.scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scale)
        return found.transpose(1, 2).reshape(rows, heads, 1, size)

    @property
    def bytes(self) -> int:
        """Return the size of the buffers."""
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
    """Every source group, and which rows of the batch belong to it."""

    def __init__(self) -> None:
        self._groups: dict[int, SourceGroup] = {}

    def add(self, owner: int, width: int, parts: Sequence[Part]) -> None:
        """Add the source of a request with ``width`` rows."""
        self._groups.setdefault(width, SourceGroup(width)).add(owner, parts)

    def remove(self, owner: int, width: int) -> None:
        """Remove the source of a request."""
        group = self._groups[width]
        group.remove(owner)
        if not group.owners:
            del self._groups[width]

    def place(self, rows: Mapping[int, Sequence[int]], device: torch.device) -> None:
        """Record where the rows of every request are; call it after every change."""
        total = sum(map(len, rows.values()))
        for group in self._groups.values():
            flat = [row for owner in group.owners for row in sorted(rows[owner])]
            in_order = flat == list(range(total))
            group.index = None if in_order else torch.tensor(flat, device=device)

    @property
    def groups(self) -> list[SourceGroup]:
        """Return every source group that holds something."""
        return list(self._groups.values())

    def attend(self, layer: int, queries: Tensor, scale: float) -> Tensor:
        """Return the cross-attention of all rows' ``queries`` [N, A, 1, D], in the same shape."""
        found: Tensor | None = None
        for group in self._groups.values():
            if group.index is None:
                return group.attend(layer, queries, scale)
            if found is None:
                found = torch.empty_like(queries)
            found.index_copy_(
                0, group.index, group.attend(layer, queries.index_select(0, group.index), scale)
            )
        assert found is not None, "every row has a source"  # noqa: S101
        return found

    @property
    def bytes(self) -> int:
        """Return the size of all buffers."""
        return sum(group.bytes for group in self._groups.values())


class SourcedRows:
    """The rows of a running batch that read sources; a subclass computes the steps.

    Args:
        device: where the batch is.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._timeline = Timeline()
        self._sources = Sources()
        self._rows: dict[int, list[int]] = {}

    def join(self, owner: int, start: DecoderStart, width: int) -> None:
        """Add a request with ``width`` equal rows at the end."""
        at = len(self._timeline)
        self._timeline.insert(start.kept, width)
        self._sources.add(owner, width, start.parts)
        self._rows[owner] = list(range(at, at + width))
        self._sources.place(self._rows, self._device)

    def settle(
        self, sources: Sequence[int], rows: Mapping[int, Sequence[int]], left: Mapping[int, int]
    ) -> None:
        """Rearrange rows, and drop the sources of requests that left."""
        self._timeline.rearrange(sources)
        self._rows = {owner: list(mine) for owner, mine in rows.items()}
        for owner, width in left.items():
            self._sources.remove(owner, width)
        if self._rows:
            self._sources.place(self._rows, self._device)

    @property
    def bytes(self) -> int:
        """Return the size of all buffers."""
        return self._timeline.bytes + self._sources.bytes
