"""What decoders of encoder–decoders read: encoded passages, once for all beams of a request.

Shapes: R requests of a source group, w rows of each, S source tokens of the longest, A heads, D head
size, K layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from evenmesh_generator.runtime.networks.protocol import Demand, Footprint, Joining, Part
from evenmesh_generator.runtime.networks.timeline import Timeline
from evenmesh_kit.compute.placement import upload

STATES = "states"
"""Name of the cross-attention keys and values."""

_ROWS: Final = 4
_COLUMNS: Final = 64
_SPARE: Final = 1.5
"""Buffers grow by blocks of requests and of tokens; ones more than 1.5 times too large are replaced."""

_Field = tuple[str, int]
"""Name and layer of a buffer; :data:`STATES` has one for each layer, the others are layer 0."""


class SourceGroup:
    """Sources of requests that have equally many rows, side by side.

    Buffers are replaced one after the other, so that the old and the new ones never all exist together.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.owners: list[int] = []
        self.lengths: list[int] = []
        self.index: Tensor | None = None
        """Rows of the batch [R·w], requests one after the other; None: all rows in order."""
        self._fields: dict[_Field, Tensor] = {}
        self._mask: Tensor | None = None

    def planned(self, lengths: Sequence[int]) -> int:
        """Return the tokens that the buffers have room for once sources of so many tokens have joined."""
        slots, capacity = self._shape(lengths) if lengths else self._held
        return slots * capacity

    def add(self, joining: Sequence[tuple[int, Sequence[Part]]]) -> None:
        """Put the passages of each request side by side: of all requests, or of none if there is no memory.

        Args:
            joining: requests and their passages.
        """
        lengths = [tokens_of(parts) for _, parts in joining]
        slots, capacity = self._shape(lengths)
        at = len(self.owners)
        mask = _visible([*self.lengths, *lengths], joining[0][1][0][STATES].device)
        for (name, layer), example in _split(joining[0][1][0]).items():
            axis = _axis(name)
            field = self._fields.get((name, layer))
            if field is None or (field.shape[0], field.shape[axis + 1]) != (slots, capacity):
                shape = [slots, *example.shape]
                shape[axis + 1] = capacity
                fresh = example.new_empty(shape)  # a request's padding is zeroed with it
                if field is not None and at:
                    room = min(field.shape[axis + 1], capacity)
                    fresh[:at].narrow(axis + 1, 0, room).copy_(field[:at].narrow(axis + 1, 0, room))
                    fresh[:at].narrow(axis + 1, room, capacity - room).zero_()
                self._fields[name, layer] = fresh
        for place, (_, parts) in enumerate(joining, at):
            begin = 0
            for part in parts:
                for (name, layer), values in _split(part).items():
                    axis = _axis(name)
                    row = self._fields[name, layer][place]
                    row.narrow(axis, begin, values.shape[axis]).copy_(values)
                begin += part[STATES].shape[3]
            for (name, _), field in self._fields.items():
                field[place].narrow(_axis(name), begin, capacity - begin).zero_()
        self.owners += [owner for owner, _ in joining]
        self.lengths += lengths
        self._mask = mask

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
            self._mask = _visible(self.lengths, next(iter(self._fields.values())).device)
        else:
            self._fields.clear()

    def field(self, name: str, layer: int = 0) -> Tensor:
        """Return a field of every request, [R, S, …] (:data:`STATES` [R, 2, A, S, D] of one layer)."""
        mine = self._fields[name, layer][: len(self.owners)]
        return mine.narrow(_axis(name) + 1, 0, _extent(self.lengths, mine.device))

    @property
    def visible(self) -> Tensor | None:
        """Return True on source tokens, [R, S]; None if there is no padding."""
        return self._mask

    def attend(self, layer: int, queries: Tensor, scale: float) -> Tensor:
        """Return the cross-attention of ``queries`` [R·w, A, 1, D], in the same shape."""
        states = self.field(STATES, layer)
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

    def _shape(self, lengths: Sequence[int]) -> tuple[int, int]:
        """Return requests and tokens of the buffers once sources of so many tokens have joined."""
        count = len(self.owners) + len(lengths)
        longest = max([*self.lengths, *lengths], default=0)
        slots = count if count <= _ROWS else -(-count // _ROWS) * _ROWS
        capacity = -(-longest // _COLUMNS) * _COLUMNS
        held = self._held
        fits = count <= held[0] and longest <= held[1]
        return held if fits and held[0] * held[1] <= _SPARE * slots * capacity else (slots, capacity)

    @property
    def _held(self) -> tuple[int, int]:
        """Return requests and tokens of the buffers."""
        for (name, _), field in self._fields.items():
            return field.shape[0], field.shape[_axis(name) + 1]
        return 0, 0


def tokens_of(parts: Sequence[Part]) -> int:
    """Return the source tokens of passages side by side."""
    return sum(part[STATES].shape[3] for part in parts)


def _axis(name: str) -> int:
    """Return which axis of a field is the tokens': attention reads a head's keys in a row."""
    return 2 if name == STATES else 0


def _split(part: Part) -> dict[_Field, Tensor]:
    """Return the tensors of a passage by buffer."""
    found = {(name, 0): value for name, value in part.items() if name != STATES}
    return {**{(STATES, layer): states for layer, states in enumerate(part[STATES])}, **found}


def _visible(lengths: Sequence[int], device: torch.device) -> Tensor | None:
    """Return True on source tokens, [R, S]; None if there is no padding."""
    extent = _extent(lengths, device)
    if min(lengths) == extent:
        return None
    return torch.arange(extent, device=device) < upload(lengths, device)[:, None]


def _extent(lengths: Sequence[int], device: torch.device) -> int:
    """Return the tokens of every source with its padding.

    A processor computes what fills no whole block in another order. In whole blocks a source's sums are the
    same to the bit however long others are.
    """
    longest = max(lengths)
    return -(-longest // _COLUMNS) * _COLUMNS if device.type == "cpu" else longest


class Sources:
    """Every source group, and which rows of the batch belong to it."""

    def __init__(self) -> None:
        self._groups: dict[int, SourceGroup] = {}

    def planned(self, joining: Sequence[tuple[int, int]]) -> int:
        """Return the tokens that all buffers have room for once these have joined.

        Args:
            joining: rows and source tokens of each request.
        """
        lengths: dict[int, list[int]] = {width: [] for width in self._groups}
        for width, length in joining:
            lengths.setdefault(width, []).append(length)
        return sum(
            self._groups.get(width, SourceGroup(width)).planned(mine) for width, mine in lengths.items()
        )

    def add(self, joining: Sequence[tuple[int, int, Sequence[Part]]]) -> None:
        """Add the sources of requests: of all, or of none if there is no memory for them.

        Args:
            joining: requests, their rows and their passages.
        """
        groups: dict[int, list[tuple[int, Sequence[Part]]]] = {}
        for owner, width, parts in joining:
            groups.setdefault(width, []).append((owner, parts))
        added: list[tuple[int, int]] = []
        try:
            for width, mine in sorted(groups.items(), key=lambda item: self._grown(*item)):
                group = self._groups.get(width, SourceGroup(width))
                group.add(mine)
                self._groups[width] = group
                added += [(owner, width) for owner, _ in mine]
        except Exception:
            for owner, width in added:
                self.remove(owner, width)
            raise

    def _grown(self, width: int, joining: Sequence[tuple[int, Sequence[Part]]]) -> int:
        """Return the tokens by which the buffers of a group grow: those that shrink are replaced first."""
        group = self._groups.get(width, SourceGroup(width))
        return group.planned([tokens_of(parts) for _, parts in joining]) - group.planned([])

    def remove(self, owner: int, width: int) -> None:
        """Remove the source of a request."""
        group = self._groups[width]
        group.remove(owner)
        if not group.owners:
            del self._groups[width]

    def place(self, rows: Mapping[int, Sequence[int]], device: torch.device) -> None:
        """Record where the rows of every request are; call it after every change."""
        total = sum(map(len, rows.values()))
        found: list[Tensor | None] = []
        for group in self._groups.values():
            flat = [row for owner in group.owners for row in sorted(rows[owner])]
            in_order = flat == list(range(total))
            found.append(None if in_order else upload(flat, device))
        for group, index in zip(self._groups.values(), found, strict=True):
            group.index = index

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
        footprint: what keys and values take.
    """

    def __init__(self, device: torch.device, footprint: Footprint) -> None:
        self._device = device
        self._footprint = footprint
        self._timeline = Timeline.on(device)
        self._sources = Sources()
        self._rows: dict[int, list[int]] = {}

    def planned(self, joining: Sequence[Demand]) -> int:
        """Return the most bytes that the batch has while and after these requests join."""
        own = self._timeline.planned([(one.rows, one.own) for one in joining])
        return self._footprint.batch(own, self._sources.planned([(one.rows, one.source) for one in joining]))

    def join(self, joining: Sequence[Joining]) -> None:
        """Add requests' rows at the end: all, or none if there is no memory for them."""
        at = len(self._timeline)
        rows = dict(self._rows)
        for one in joining:
            rows[one.owner] = list(range(at, at + one.width))
            at += one.width
        sources = [(one.width, tokens_of(one.started.parts)) for one in joining]
        steps = [(self._add_own, self._remove_own), (self._add_sources, self._remove_sources)]
        if self._sources.planned(sources) < self._sources.planned([]):
            steps.reverse()  # smaller buffers first: larger ones beside the old would be more than planned
        with ExitStack() as undone:
            for add, remove in steps:
                add(joining)
                undone.callback(remove, joining)
            self._sources.place(rows, self._device)
            undone.pop_all()
        self._rows = rows

    def _add_own(self, joining: Sequence[Joining]) -> None:
        self._timeline.insert([(one.started.kept, one.width, one.most) for one in joining])

    def _remove_own(self, joining: Sequence[Joining]) -> None:
        self._timeline.remove_last(sum(one.width for one in joining))

    def _add_sources(self, joining: Sequence[Joining]) -> None:
        self._sources.add([(one.owner, one.width, one.started.parts) for one in joining])

    def _remove_sources(self, joining: Sequence[Joining]) -> None:
        for one in joining:
            self._sources.remove(one.owner, one.width)

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
