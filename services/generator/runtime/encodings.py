"""What was computed of passages and prompts, kept within a budget of bytes."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from cachetools import LRUCache

Value = TypeVar("Value")


def content_key(ids: Sequence[int], *, after: bytes = b"") -> bytes:
    """Hash of a token row, or of a block of it that comes ``after`` another."""
    return hashlib.blake2b(array("q", ids).tobytes(), digest_size=16, key=after).digest()


class EncodingStore(Generic[Value]):
    """Least recently used first out. Used from one thread; counts may be read from any.

    Args:
        most_bytes: room, [0, inf); 0 keeps nothing.
        size: bytes of a value.
    """

    def __init__(self, most_bytes: int, size: Callable[[Value], int]) -> None:
        self._most = most_bytes
        self._size_of = size
        self._values: LRUCache[bytes, Value] = LRUCache(most_bytes, getsizeof=size)
        self.hits = 0
        self.misses = 0

    @property
    def size(self) -> int:
        """Bytes of what is kept."""
        return int(self._values.currsize)

    @property
    def most_bytes(self) -> int:
        """Room."""
        return self._most

    def get(self, key: bytes, *, count: bool = True) -> Value | None:
        """What was kept, or None; with ``count``, counted as a hit or a miss."""
        value: Value | None = self._values.get(key)
        if count:
            self.hits += value is not None
            self.misses += value is None
        return value

    def __contains__(self, key: bytes) -> bool:
        """Whether something is kept; counts nothing."""
        return key in self._values

    def put(self, key: bytes, value: Value) -> None:
        """Keeps a value, unless it alone is more than there is room for."""
        if self._size_of(value) <= self._most:
            self._values[key] = value

    def clear(self) -> None:
        """Forgets everything."""
        self._values.clear()
