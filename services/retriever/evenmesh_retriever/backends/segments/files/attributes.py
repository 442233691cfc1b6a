"""Index the attributes of a segment's passages: values in order by key, rows by value.

A condition costs a few steps of halving and the rows that meet it, and nothing is loaded before one asks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from evenmesh_retriever.domain import AnyOf, Condition, IntArray, NumberRange, Passage, TextRange

Entries = dict[tuple[bytes, bytes], list[NDArray[np.int32]]]
"""Rows of each key and value, in UTF-8."""

T = TypeVar("T")


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

    def rows_with(self, attribute: str) -> NDArray[np.int32]:
        """Return rows that have an attribute, in no order."""
        begin, end = self._range(attribute)
        return self._rows[self._value_rows[begin] : self._value_rows[end]]

    def rows_meeting(self, condition: Condition) -> NDArray[np.int32]:
        """Return rows that meet a condition, in no order."""
        begin, end = self._range(condition.attribute)
        match condition.allowed:
            case AnyOf(values):
                places = [self._place(value.encode(), begin, end) for value in sorted(values)]
                return self._joined([place for place in places if place is not None])
            case TextRange(low, high):
                # The order of UTF-8 is that of code points.
                first = begin if low is None else bisect_left(self._values, low.encode(), begin, end)
                last = end if high is None else bisect_right(self._values, high.encode(), begin, end)
                return self._rows[self._value_rows[first] : self._value_rows[max(first, last)]]
            case NumberRange():
                return self._joined(
                    [p for p in range(begin, end) if condition.met_by(self._values[p].decode())]
                )

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
