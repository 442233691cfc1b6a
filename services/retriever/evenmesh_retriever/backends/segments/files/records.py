"""Lay out passages on disk: their bytes one after the other, and where each field ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evenmesh_retriever.domain import IntArray, Passage

_FIELDS: Final = 4

Record = tuple[bytes, bytes, bytes, bytes]
"""A passage as stored: id, title, text, attributes (JSON with sorted keys, nothing where there are none)."""


def record_of(passage: Passage) -> Record:
    """Return the stored form of a passage; equal passages have equal ones."""
    attributes = dict(passage.attributes)
    return (
        passage.id.encode(),
        passage.title.encode(),
        passage.text.encode(),
        json.dumps(attributes, ensure_ascii=False, sort_keys=True).encode() if attributes else b"",
    )


class Records:
    """Passages in row order, read from memory-mapped bytes.

    Args:
        data: the fields of all passages, one after the other.
        bounds: where each field begins, and the end, ``[4 n + 1]``.
    """

    def __init__(self, data: NDArray[np.uint8], bounds: IntArray) -> None:
        self._data = memoryview(data.data)
        self._bounds = bounds

    def __len__(self) -> int:
        return (len(self._bounds) - 1) // _FIELDS

    @property
    def sizes(self) -> IntArray:
        """Bytes of each field of each passage, ``[n, 4]``."""
        return np.diff(self._bounds).reshape(-1, _FIELDS)

    def passage(self, row: int) -> Passage:
        """Return the passage of a row."""
        begin, title, text, attributes, end = self._bounds[_FIELDS * row : _FIELDS * row + 5].tolist()
        data = bytes(self._data[begin:end])
        return Passage(
            data[: title - begin].decode(),
            data[title - begin : text - begin].decode(),
            data[text - begin : attributes - begin].decode(),
            json.loads(data[attributes - begin :]) if end > attributes else {},
        )

    def id(self, row: int) -> bytes:
        """Return the id of a row, in UTF-8: sorted as bytes, ids are sorted as text."""
        begin, end = self._bounds[_FIELDS * row : _FIELDS * row + 2].tolist()
        return bytes(self._data[begin:end])

    def ids(self) -> list[bytes]:
        """Return all ids in row order, in UTF-8."""
        data = self._data
        begins, ends = self._bounds[:-1:_FIELDS].tolist(), self._bounds[1::_FIELDS].tolist()
        return [bytes(data[begin:end]) for begin, end in zip(begins, ends, strict=True)]

    def raw(self, row: int) -> memoryview:
        """Return the stored form of a row, its fields joined; not copied."""
        return self._data[int(self._bounds[_FIELDS * row]) : int(self._bounds[_FIELDS * (row + 1)])]

    def raw_bytes(self, rows: IntArray) -> int:
        """Return bytes of some rows, together."""
        return int((self._bounds[_FIELDS * (rows + 1)] - self._bounds[_FIELDS * rows]).sum())

    def holds(self, row: int, record: Record) -> bool:
        """Return whether a row is this very passage."""
        sizes = tuple(np.diff(self._bounds[_FIELDS * row : _FIELDS * row + 5]).tolist())
        return sizes == tuple(map(len, record)) and self.raw(row) == b"".join(record)


def bounds_of(sizes: IntArray) -> IntArray:
    """Return where fields begin, from their sizes ``[n, 4]``."""
    return np.concatenate([[0], np.cumsum(sizes.ravel())]).astype(np.int64)


def sizes_of(records: Sequence[Record]) -> IntArray:
    """Return bytes of each field of some records, ``[n, 4]``."""
    return np.array([tuple(map(len, record)) for record in records], dtype=np.int64).reshape(-1, _FIELDS)


def arrays(records: Sequence[Record]) -> dict[str, NDArray[Any]]:
    """Return what :class:`Records` reads."""
    joined = b"".join(field for record in records for field in record)
    return {
        "passages.bytes": np.frombuffer(joined, dtype=np.uint8),
        "passages.bounds": bounds_of(sizes_of(records)),
    }
