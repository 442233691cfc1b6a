"""Passages on disk: the bytes of all of them in one file, and where each field ends in another."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from services.retriever.domain import IntArray, Passage

_FIELDS: Final = 4

Record = tuple[bytes, bytes, bytes, bytes]
"""A passage as stored: id, title, text, attributes (JSON with sorted keys, nothing where there are none)."""


def record_of(passage: Passage) -> Record:
    """The stored form of a passage; equal passages have equal ones."""
    attributes = dict(passage.attributes)
    return (
        passage.id.encode(),
        passage.title.encode(),
        passage.text.encode(),
        json.dumps(attributes, ensure_ascii=False, sort_keys=True).encode() if attributes else b"",
    )


class RecordFile:
    """Passages in row order, read from memory-mapped bytes.

    Args:
        data: the fields of all passages, one after the other.
        bounds: where each field begins, and the end, ``[4 n + 1]``.
    """

    def __init__(self, data: mmap.mmap | bytes, bounds: IntArray) -> None:
        self._data = data
        self._bounds = bounds

    @classmethod
    def open(cls, path: Path, bounds: IntArray) -> RecordFile:
        """Maps the file into memory."""
        with path.open("rb") as file:
            # An empty file cannot be mapped.
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
        return cls(data, bounds)

    def __len__(self) -> int:
        return (len(self._bounds) - 1) // _FIELDS

    @property
    def sizes(self) -> IntArray:
        """Bytes of each field of each passage, ``[n, 4]``."""
        return np.diff(self._bounds).reshape(-1, _FIELDS)

    def passage(self, row: int) -> Passage:
        """The passage of a row."""
        begin, title, text, attributes, end = self._bounds[_FIELDS * row : _FIELDS * row + 5].tolist()
        data = self._data
        return Passage(
            data[begin:title].decode(),
            data[title:text].decode(),
            data[text:attributes].decode(),
            json.loads(data[attributes:end]) if end > attributes else {},
        )

    def raw(self, row: int) -> bytes:
        """The stored form of a row, its fields joined."""
        return self._data[int(self._bounds[_FIELDS * row]) : int(self._bounds[_FIELDS * (row + 1)])]

    def ids(self) -> list[str]:
        """All ids, in row order."""
        data = self._data
        begins, ends = self._bounds[:-1:_FIELDS].tolist(), self._bounds[1::_FIELDS].tolist()
        return [data[begin:end].decode() for begin, end in zip(begins, ends, strict=True)]

    def holds(self, row: int, record: Record) -> bool:
        """Whether a row is this very passage."""
        return self.sizes_of(row) == tuple(map(len, record)) and self.raw(row) == b"".join(record)

    def sizes_of(self, row: int) -> tuple[int, ...]:
        """Bytes of each field of a row."""
        return tuple(np.diff(self._bounds[_FIELDS * row : _FIELDS * row + 5]).tolist())


def bounds_of(sizes: IntArray) -> IntArray:
    """Where fields begin, from their sizes ``[n, 4]``."""
    return np.concatenate([[0], np.cumsum(sizes.ravel())]).astype(np.int64)


def sizes_of(records: Sequence[Record]) -> IntArray:
    """Bytes of each field of some records, ``[n, 4]``."""
    return np.array([tuple(map(len, record)) for record in records], dtype=np.int64).reshape(-1, _FIELDS)


def joined(base: RecordFile | None, records: Sequence[Record], sources: Iterable[int]) -> Iterator[bytes]:
    """The bytes of a new file: row ``s`` of ``base``, or, past its end, one of ``records``."""
    size = 0 if base is None else len(base)
    for source in sources:
        if base is not None and source < size:
            yield base.raw(source)
        else:
            yield b"".join(records[source - size])
