"""Index the attributes of a segment's passages: values in order by key, rows by value.

A condition costs a few steps of halving and the rows that meet it, and nothing is loaded before one asks. The
first condition on the numbers of an attribute reads them all, and they are kept: eight bytes for each value.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from evenmesh_retriever.domain import (
    AnyOf,
    Condition,
    FloatArray,
    IntArray,
    NumberRange,
    Passage,
    TextRange,
    number_of,
)

Entries = dict[tuple[bytes, bytes], list[NDArray[np.int32]]]
"""Rows of each key and value, in UTF-8."""

_READ: Final = 16
"""Values of an attribute for each that is asked for, up to which all are read: quicker than halving."""


class _Strings(Sequence[bytes]):
    """Byte strings end to end."""

    def __init__(self, data: NDArray[np.uint8], bounds: IntArray) -> None:
        self._data = data
        self._bounds = bounds

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[bytes]: ...
    def __getitem__(self, place: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        return self._data[int(self._bounds[place]) : int(self._bounds[place + 1])].tobytes()

    def texts(self, begin: int, end: int) -> Iterator[str]:
        """Decode a run of them, which is read at once."""
        bounds = self._bounds[begin : end + 1].tolist()
        data = self._data[bounds[0] : bounds[-1]].tobytes()
        return (data[at - bounds[0] : to - bounds[0]].decode() for at, to in pairwise(bounds))


class AttributeIndex:
    """Rows by attribute.

    Args:
        arrays: those of the segment, of which it reads ``attributes.*``.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._keys = _Strings(arrays["attributes.keys.bytes"], arrays["attributes.keys.bounds"])
        self._key_values: IntArray = arrays["attributes.key_values"]
        self._values = _Strings(arrays["attributes.values.bytes"], arrays["attributes.values.bounds"])
        self._value_rows: IntArray = arrays["attributes.value_rows"]
        self._rows: NDArray[np.int32] = arrays["attributes.rows"]
        self._numbers: dict[str, FloatArray] = {}

    def rows_with(self, attribute: str) -> NDArray[np.int32]:
        """Return rows that have an attribute, in no order."""
        begin, end = self._range(attribute)
        return self._rows[self._value_rows[begin] : self._value_rows[end]]

    def rows_meeting(self, condition: Condition) -> NDArray[np.int32]:
        """Return rows that meet a condition, in no order."""
        begin, end = self._range(condition.attribute)
        match condition.allowed:
            case AnyOf(values):
                if end - begin <= _READ * len(values):
                    texts = enumerate(self._values.texts(begin, end), begin)
                    return self._joined([place for place, value in texts if value in values])
                places = [self._place(value.encode(), begin, end) for value in sorted(values)]
                return self._joined([place for place in places if place is not None])
            case TextRange(low, high):
                # The order of UTF-8 is that of code points.
                first = begin if low is None else bisect_left(self._values, low.encode(), begin, end)
                last = end if high is None else bisect_right(self._values, high.encode(), begin, end)
                return self._rows[self._value_rows[first] : self._value_rows[max(first, last)]]
            case NumberRange(low, high):
                numbers = self._numbers_of(condition.attribute, begin, end)
                met = (numbers >= (-inf if low is None else low)) & (
                    numbers <= (inf if high is None else high)
                )
                rows = self._rows[self._value_rows[begin] : self._value_rows[end]]
                return rows[np.repeat(met, np.diff(self._value_rows[begin : end + 1]))]

    def entries(self) -> Iterator[tuple[tuple[bytes, bytes], NDArray[np.int32]]]:
        """Everything, key by key and value by value."""
        for number in range(len(self._keys)):
            key = self._keys[number]
            for place in range(int(self._key_values[number]), int(self._key_values[number + 1])):
                rows = self._rows[self._value_rows[place] : self._value_rows[place + 1]]
                yield (key, self._values[place]), rows

    def _range(self, attribute: str) -> tuple[int, int]:
        number = bisect_left(self._keys, attribute.encode())
        if number == len(self._keys) or self._keys[number] != attribute.encode():
            return 0, 0
        return int(self._key_values[number]), int(self._key_values[number + 1])

    def _numbers_of(self, attribute: str, begin: int, end: int) -> FloatArray:
        """Return the numbers that the values of an attribute are, nan where one is none, ``[values]``."""
        if begin == end:
            return np.empty(0)
        if attribute not in self._numbers:
            values = self._values.texts(begin, end)
            self._numbers[attribute] = np.fromiter(map(number_of, values), np.float64, end - begin)
        return self._numbers[attribute]

    def _place(self, value: bytes, begin: int, end: int) -> int | None:
        place = bisect_left(self._values, value, begin, end)
        return place if place < end and self._values[place] == value else None

    def _joined(self, places: Sequence[int]) -> NDArray[np.int32]:
        parts = [self._rows[self._value_rows[p] : self._value_rows[p + 1]] for p in places]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)


def entries_of(passages: Iterable[Passage]) -> Entries:
    """Return the entries of passages in row order."""
    rows: dict[tuple[bytes, bytes], list[int]] = {}
    for row, passage in enumerate(passages):
        for key, value in passage.attributes.items():
            rows.setdefault((key.encode(), value.encode()), []).append(row)
    return {entry: [np.array(some, dtype=np.int32)] for entry, some in rows.items()}


def arrays(entries: Entries) -> dict[str, NDArray[Any]]:
    """Return what :class:`AttributeIndex` reads."""
    ordered = sorted(entries)
    keys = sorted({key for key, _ in ordered})
    number = {key: place for place, key in enumerate(keys)}
    per_key = np.bincount(np.array([number[key] for key, _ in ordered], dtype=np.int64), minlength=len(keys))
    parts = [part for entry in ordered for part in entries[entry]]
    return {
        "attributes.keys.bytes": np.frombuffer(b"".join(keys), dtype=np.uint8),
        "attributes.keys.bounds": _bounds([len(key) for key in keys]),
        "attributes.key_values": _bounds(per_key.tolist()),
        "attributes.values.bytes": np.frombuffer(b"".join(value for _, value in ordered), dtype=np.uint8),
        "attributes.values.bounds": _bounds([len(value) for _, value in ordered]),
        "attributes.value_rows": _bounds([sum(map(len, entries[entry])) for entry in ordered]),
        "attributes.rows": np.concatenate(parts) if parts else np.empty(0, dtype=np.int32),
    }


def _bounds(sizes: Sequence[int]) -> IntArray:
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)
