"""Keep results in memory by tenant and key: no tenant finds, or evicts, what another one has."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Final, Generic, TypeVar

V = TypeVar("V")

ENTRY_BYTES: Final = 256
"""What an entry takes beside its key and value, about. Bytes."""


class TenantCache(Generic[V]):
    """A cache of the values used last, bounded in bytes; thread-safe.

    A tenant holds at most a share. Where all are full, the tenant that holds most loses what it used longest
    ago, so that a tenant which holds little keeps it whatever others do.

    Args:
        most_bytes: most bytes of all tenants; 0 keeps nothing. [0, inf).
        share: most of it that one tenant may hold, (0, 1].
    """

    def __init__(self, most_bytes: int, *, share: float = 0.25) -> None:
        self._most = most_bytes
        self._most_of_one = int(most_bytes * share)
        self._entries: dict[str, OrderedDict[Hashable, tuple[V, int]]] = {}
        self._held: dict[str, int] = {}
        self._guard = Lock()

    def get(self, tenant: str, key: Hashable) -> V | None:
        """Return the tenant's value of a key; None if there is none."""
        with self._guard:
            entries = self._entries.get(tenant)
            found = None if entries is None else entries.get(key)
            if entries is None or found is None:
                return None
            entries.move_to_end(key)
            return found[0]

    def put(self, tenant: str, key: Hashable, value: V, size: int) -> None:
        """Keep a value of ``size`` bytes, key included; one above the tenant's share is not kept."""
        size += ENTRY_BYTES
        with self._guard:
            self._drop(tenant, key)
            if size > self._most_of_one:
                return
            self._entries.setdefault(tenant, OrderedDict())[key] = (value, size)
            self._held[tenant] = self._held.get(tenant, 0) + size
            while self._held[tenant] > self._most_of_one:
                self._drop(tenant, next(iter(self._entries[tenant])))
            while sum(self._held.values()) > self._most:
                largest = max(self._held, key=lambda one: self._held[one])
                self._drop(largest, next(iter(self._entries[largest])))

    def drop(self, tenant: str, key: Hashable) -> None:
        """Forget the tenant's value of a key, if there is one."""
        with self._guard:
            self._drop(tenant, key)

    @property
    def size(self) -> int:
        """Return what all tenants hold. Bytes."""
        with self._guard:
            return sum(self._held.values())

    def held(self, tenant: str) -> int:
        """Return what a tenant holds. Bytes."""
        with self._guard:
            return self._held.get(tenant, 0)

    def _drop(self, tenant: str, key: Hashable) -> None:
        entries = self._entries.get(tenant)
        if entries is None or key not in entries:
            return
        self._held[tenant] -= entries.pop(key)[1]
        if not entries:
            del self._entries[tenant], self._held[tenant]
