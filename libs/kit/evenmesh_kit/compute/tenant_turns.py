"""A queue that serves tenants in turns, each tenant's items in the order of their arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Line(Generic[T]):
    """One tenant's items with the virtual times of their arrival, and the time it has paid until."""

    paid_until: float = 0.0
    items: deque[tuple[float, T]] = field(default_factory=deque)

    @property
    def starts_at(self) -> float:
        """Return the start tag of the first item."""
        return max(self.items[0][0], self.paid_until)


class TenantTurns(Generic[T]):
    """Items that wait, taken by start-time fair queueing (Goyal, Vin and Cheng, 1996, section 2).

    While two tenants both wait, the cost taken of each differs by at most one item of each. Not thread-safe.

    Args:
        tenant_of: tenant of an item; equal names share turns.
        cost: cost of an item, (0, inf).
    """

    def __init__(self, tenant_of: Callable[[T], str], cost: Callable[[T], float] = lambda _: 1.0) -> None:
        self._tenant_of = tenant_of
        self._cost = cost
        self._lines: dict[str, _Line[T]] = {}
        self._virtual = 0.0

    def __len__(self) -> int:
        """Return the number of items."""
        return sum(len(line.items) for line in self._lines.values())

    def __iter__(self) -> Iterator[T]:
        """Return the items, tenant by tenant, as they are now: also for other threads."""
        return (item for line in tuple(self._lines.values()) for _, item in tuple(line.items))

    def heads(self) -> list[T]:
        """Return the first item of each tenant that waits."""
        return [line.items[0][1] for line in self._lines.values() if line.items]

    def append(self, item: T) -> None:
        """Add an item."""
        line = self._lines.setdefault(self._tenant_of(item), _Line())
        line.items.append((self._virtual, item))

    def first(self, allowed: Callable[[T], bool] = lambda _: True) -> T | None:
        """Return the next item of the tenants whose first item is ``allowed``; None without any."""
        lines = [line for line in self._lines.values() if line.items and allowed(line.items[0][1])]
        return min(lines, key=lambda line: line.starts_at).items[0][1] if lines else None

    def popleft(self) -> T:
        """Remove and return the next item.

        Raises:
            IndexError: there is none.
        """
        item = self.first()
        if item is None:
            raise IndexError("no item waits")
        self.take(item)
        return item

    def take(self, item: T) -> None:
        """Remove an item whose turn has come; its tenant pays for it."""
        line = self._lines[self._tenant_of(item)]
        self._virtual = max(self._virtual, line.starts_at)
        line.paid_until = line.starts_at + self._cost(item)
        self.remove(item)

    def remove(self, item: T) -> None:
        """Remove an item; it costs nothing."""
        line = self._lines[self._tenant_of(item)]
        line.items.remove(next(entry for entry in line.items if entry[1] is item))
        if not len(self):
            # Nothing waits: forget who was ahead.
            self._lines.clear()
            self._virtual = 0.0
        for tenant, one in tuple(self._lines.items()):
            if not one.items and one.paid_until <= self._virtual:
                del self._lines[tenant]

    def clear(self) -> None:
        """Remove all items."""
        self._lines.clear()
        self._virtual = 0.0
