"""Keep encodings of passages and prompts within a budget of bytes; no tenant finds what another one sent."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from evenmesh_kit.compute.tenant_cache import TenantCache

Value = TypeVar("Value")


def content_key(ids: Sequence[int], *, after: bytes = b"", tenant: str = "") -> bytes:
    """Return the hash of a tenant's token row, or of a block of it that comes ``after`` another."""
    person = hashlib.blake2b(tenant.encode(), digest_size=16).digest() if tenant else b""
    return hashlib.blake2b(array("q", ids).tobytes(), digest_size=16, key=after, person=person).digest()


class EncodingStore(Generic[Value]):
    """Least recently used first out, of the tenant that keeps most. Counts may be read from any thread.

    Args:
        most_bytes: room, [0, inf); 0 keeps nothing.
        size: bytes of a value.
    """

    def __init__(self, most_bytes: int, size: Callable[[Value], int]) -> None:
        self._most = most_bytes
        self._size_of = size
        self._values: TenantCache[Value] = TenantCache(most_bytes, share=1.0)
        self.hits = 0
        self.misses = 0

    @property
    def size(self) -> int:
        """Return the bytes of the cached data."""
        return self._values.size

    @property
    def most_bytes(self) -> int:
        """Return the room, in bytes."""
        return self._most

    def get(self, key: bytes, tenant: str, *, count: bool = True) -> Value | None:
        """Return the tenant's cached value, or None; with ``count``, count a hit or a miss."""
        value = self._values.get(tenant, key)
        if count:
            self.hits += value is not None
            self.misses += value is None
        return value

    def put(self, key: bytes, value: Value, tenant: str) -> None:
        """Keep a value for a tenant, unless it alone exceeds the room."""
        self._values.put(tenant, key, value, self._size_of(value))

    def clear(self) -> None:
        """Forget every value, and the counts."""
        self._values = TenantCache(self._most, share=1.0)
        self.hits = self.misses = 0

    def counts(self) -> tuple[int, int, int]:
        """Return the bytes kept, the hits and the misses."""
        return self.size, self.hits, self.misses
