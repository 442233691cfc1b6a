"""What many agents need in memory, in bounded memory: loaded on demand, least recently used out."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, Protocol, TypeVar


class _Sized(Protocol):
    @property
    def size(self) -> int: ...


V = TypeVar("V", bound=_Sized)


class LoadingCache(Generic[V]):
    """Values by key; whoever wants one that is not there waits while it is loaded, once for all who do.

    Args:
        capacity: most bytes of values that are kept; the newest is kept whatever its size.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self._loading: dict[Hashable, asyncio.Task[V]] = {}

    @property
    def size(self) -> int:
        """Bytes of all values. Who uses one that was let go of keeps it in memory until done."""
        return sum(value.size for value in self._values.values())

    async def get(self, key: Hashable, load: Callable[[], Awaitable[V]]) -> V:
        """The value of a key.

        Raises:
            Exception: as ``load`` does; it is tried again for who asks next.
        """
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
            return value
        task = self._loading.get(key)
        if task is None:
            task = self._loading[key] = asyncio.create_task(self._load(key, load))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Others may wait for it when one leaves.
        return await asyncio.shield(task)

    def clear(self) -> None:
        """Lets go of everything."""
        self._values.clear()

    async def _load(self, key: Hashable, load: Callable[[], Awaitable[V]]) -> V:
        try:
            value = await load()
        finally:
            del self._loading[key]
        self._values[key] = value
        while len(self._values) > 1 and self.size > self._capacity:
            self._values.popitem(last=False)
        return value
