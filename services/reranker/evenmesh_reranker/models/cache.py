"""A bounded cache in memory that loads values on demand; the tenant that holds most loses values first."""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, Protocol, TypeAlias, TypeVar


class _Sized(Protocol):
    @property
    def size(self) -> int: ...


V = TypeVar("V", bound=_Sized)
_Key: TypeAlias = "tuple[str, Hashable]"


class LoadingCache(Generic[V]):
    """Values by tenant and key. Requests for a missing value wait for one load that they share.

    A load runs outside every caller's context, so that it does not fail at the deadline of one of them.

    Where the room is full, the tenant that holds most loses what it used longest ago.

    Args:
        capacity: most bytes of the values kept; a single one is kept whatever its size.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: OrderedDict[_Key, V] = OrderedDict()
        self._loading: dict[_Key, asyncio.Task[V]] = {}

    @property
    def size(self) -> int:
        """Bytes of all values. A dropped value stays in memory while someone uses it."""
        return sum(value.size for value in self._values.values())

    async def get(self, tenant: str, key: Hashable, load: Callable[[], Awaitable[V]]) -> V:
        """Return a tenant's value of a key.

        Raises:
            Exception: as ``load`` does; the next request tries again.
        """
        place = tenant, key
        value = self._values.get(place)
        if value is not None:
            self._values.move_to_end(place)
            return value
        task = self._loading.get(place)
        if task is None:
            loading = asyncio.create_task(self._load(place, load), context=contextvars.Context())
            task = self._loading[place] = loading
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        # One request that is cancelled must not end the load that others wait for.
        return await asyncio.shield(task)

    def holds(self, tenant: str, key: Hashable) -> bool:
        """Return whether a tenant's value of a key is there or being loaded."""
        return (tenant, key) in self._values or (tenant, key) in self._loading

    async def peek(self, tenant: str, key: Hashable) -> V | None:
        """Return a tenant's value of a key, once a load under way has ended; None if it is not there."""
        if (task := self._loading.get((tenant, key))) is not None:
            await asyncio.wait([task])
        return self._values.get((tenant, key))

    def drop(self, tenant: str, key: Hashable) -> None:
        """Forget a tenant's value of a key, if there is one."""
        self._values.pop((tenant, key), None)

    async def _load(self, place: _Key, load: Callable[[], Awaitable[V]]) -> V:
        try:
            value = await load()
        finally:
            del self._loading[place]
        self._values[place] = value
        while len(self._values) > 1 and self.size > self._capacity:
            held: Counter[str] = Counter()
            for (tenant, _), one in self._values.items():
                held[tenant] += one.size
            fullest = max(held, key=held.__getitem__)
            del self._values[next(place for place in self._values if place[0] == fullest)]
        return value
