"""Admission control: count work in flight, queue tenants fairly, reject excess work."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Self

import grpc

from evenmesh.wire import deadline
from evenmesh.wire.errors import OVERLOADED, SHARE_FULL, MeshError, Overloaded
from evenmesh_kit.admission import metering
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import ANYONE
from evenmesh_kit.settings import ServiceSettings

_OVER_CAPACITY: Final = "OVER_CAPACITY"
REASONS: Final = (OVERLOADED, SHARE_FULL, _OVER_CAPACITY)
"""Reasons of rejected work."""
_HALF_LIFE_S: Final = 10.0
_DELAYS_S: Final = (0.05, 30.0)
_UNKNOWN_DELAY_S: Final = 1.0


@dataclass(slots=True, eq=False)
class _Waiting:
    """A queued request: its work, the virtual time of its arrival, and its turn."""

    work: int
    arrived_at: float
    turn: asyncio.Future[None]


@dataclass(slots=True)
class TenantQueue:
    """The requests of one tenant in order, their work, and the virtual time its admitted work ends at.

    ``most``: largest work that the tenant may have in flight.
    """

    most: int
    weight: float = 1.0
    paid_until: float = 0.0
    work: int = 0
    in_flight: int = 0
    waiting: deque[_Waiting] = field(default_factory=deque)

    @property
    def starts_at(self) -> float:
        """Return the start tag of the first request."""
        return max(self.waiting[0].arrived_at, self.paid_until)

    @property
    def may_begin(self) -> bool:
        """Return whether its first request fits its tenant's share; False if none waits."""
        return bool(self.waiting) and self.in_flight + self.waiting[0].work <= self.most


class Admission:
    """Limits the work in flight of a service. For one event loop, not for several threads.

    Work that does not fit is rejected at once under ``with``; under ``async with`` it may wait for its turn,
    at most ``queue_s``. Tenants take turns in proportion to their weights, however much each asks, by
    start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996, section 2) with the capacity as its depth
    (SFQ(D): Jin, Chase and Kaur, SIGMETRICS 2004, section 4). While two tenants both wait, the work begun for
    each, divided by its weight, differs by at most one request of each over its weight (theorem 1 there). A
    request that gives up before its turn costs its tenant nothing. A tenant gains no credit by a pause: its
    request is next as soon as enough of the work in flight has ended.

    A request is rejected without waiting if its tenant has as much work waiting as the capacity, or if the
    wait would exceed ``queue_s`` at recent throughput; the first request of a tenant may always wait.

    A request that could never be admitted is rejected with RESOURCE_EXHAUSTED, ``OVER_CAPACITY``, without a
    retry delay. No authenticated tenant has more than ``share`` of the capacity in flight, so that the others
    find room however long its requests take; the turns of the others do not wait for such a tenant. What is
    rejected for that has the reason ``SHARE_FULL``, and else ``OVERLOADED``.

    Args:
        capacity: most work in flight, in the service's unit, [1, inf).
        unit: plural name of the unit, for messages: ``pairs``, ``tokens``.
        queue_s: longest wait for a turn. Seconds, [0, inf).
        share: largest part of the capacity that one authenticated tenant may use, (0, 1].
        clock: monotonic seconds.
    """

    def __init__(
        self,
        capacity: int,
        unit: str,
        *,
        queue_s: float = 0.0,
        share: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        if queue_s < 0:
            raise ValueError(f"queue_s must not be negative, got {queue_s}")
        if not 0 < share <= 1:
            raise ValueError(f"share must be in (0, 1], got {share}")
        self._capacity = capacity
        self._share = max(1, math.floor(capacity * share))
        self._unit = unit
        self._queue_s = queue_s
        self._clock = clock
        self._report_wait: Callable[[float], None] = lambda _: None
        self._refused: Counter[str] = Counter()
        self._in_flight = 0
        # By tenant; kept while a tenant runs, waits or is ahead of the others.
        self._queues: dict[str, TenantQueue] = {}
        # Virtual time: the start tag of the request begun last.
        self._virtual = 0.0
        # Work done and busy seconds spent on it, decaying alike; their ratio is the throughput.
        self._done = 0.0
        self._busy_s = 0.0
        self._seen_at = 0.0

    @classmethod
    def from_settings(cls, settings: ServiceSettings, unit: str) -> Self:
        """Return the admission of a service with these settings."""
        return cls(settings.max_work, unit, queue_s=settings.queue_s, share=settings.tenant_share)

    @property
    def capacity(self) -> int:
        """Return the most work in flight."""
        return self._capacity

    @property
    def unit(self) -> str:
        """Return the plural name of the unit of work."""
        return self._unit

    @property
    def refused(self) -> Mapping[str, int]:
        """Return the number of rejected requests by reason."""
        return self._refused

    def on_wait(self, report: Callable[[float], None]) -> None:
        """Call ``report`` with the wait of each request that was queued and admitted. Seconds."""
        self._report_wait = report

    @property
    def in_flight(self) -> int:
        """Return the work in flight, [0, capacity]."""
        return self._in_flight

    @property
    def waiting(self) -> int:
        """Return the work that waits, [0, inf)."""
        # A copy, as threads of metrics read it too.
        return sum(queue.work for queue in tuple(self._queues.values()))

    @property
    def largest(self) -> int:
        """Return the largest work of one request of the current caller."""
        return self._capacity if callers.current() is ANYONE else self._share

    def admit(self, work: int, *, queue_s: float | None = None) -> Admitted:
        """Hold ``work`` units, [0, :attr:`largest`], while a block runs.

        ``with`` admits it at once or never, ``async with`` may wait.

        Args:
            work: the units.
            queue_s: longest wait, instead of the queue's own; with infinity it waits until its deadline,
                however many wait before it, for a call that has begun. Seconds, [0, inf].

        Raises:
            Overloaded: on entry, if the capacity or the tenant's share would be exceeded; with the time after
                which it should fit.
            MeshError: on entry, RESOURCE_EXHAUSTED, ``OVER_CAPACITY``: it can never be admitted.
        """
        if work < 0:
            raise ValueError(f"work must not be negative, got {work}")
        return Admitted(self, work, self._queue_s if queue_s is None else queue_s)

    @contextmanager
    def grow(self, work: int) -> Iterator[None]:
        """Hold ``work`` more units of a request that was admitted, [0, :attr:`largest`], while a block runs.

        It never waits, and passes those who do: a request that waited for more, with some in hand, could wait
        for its own turn.

        Raises:
            Overloaded: on entry, as :meth:`admit`.
            MeshError: on entry, as :meth:`admit`.
        """
        if not work:
            yield
            return
        queue = self._queue(work)
        if not self._fits(queue, work):
            raise self._refusal(queue, work)
        self._begin(queue, work, max(self._virtual, queue.paid_until))
        try:
            yield
        finally:
            self.leave(work, queue)

    def enter(self, work: int) -> TenantQueue:
        """Admit work at once, as :meth:`admit` under ``with``; return what :meth:`leave` ends it with."""
        queue = self._queue(work)
        if not self._begun_at_once(queue, work):
            raise self._refusal(queue, work)
        return queue

    async def enter_in_turn(self, work: int, queue_s: float) -> TenantQueue:
        """Admit work when its turn has come, as :meth:`admit` under ``async with``."""
        queue = self._queue(work)
        if self._begun_at_once(queue, work):
            return queue
        wait_s = min(queue_s, deadline.current().remaining())
        if wait_s <= 0 or not self._may_wait(queue, work, queue_s):
            raise self._refusal(queue, work)
        one = _Waiting(work, self._virtual, asyncio.get_running_loop().create_future())
        queue.waiting.append(one)
        queue.work += work
        arrived_at = self._clock()
        try:
            await asyncio.wait((one.turn,), timeout=None if math.isinf(wait_s) else wait_s)
        except asyncio.CancelledError:
            if one.turn.done():
                self.leave(work, queue)
            else:
                self._give_up(queue, one)
            raise
        if not one.turn.done():
            self._give_up(queue, one)
            raise self._refusal(queue, work)
        self._report_wait(self._clock() - arrived_at)
        return queue

    def leave(self, work: int, queue: TenantQueue) -> None:
        """End admitted work of a tenant, and begin what waits and fits."""
        self._advance()
        self._in_flight -= work
        queue.in_flight -= work
        self._done += work
        self._begin_waiting()

    def _fits(self, queue: TenantQueue, work: int) -> bool:
        return self._in_flight + work <= self._capacity and queue.in_flight + work <= queue.most

    def _begun_at_once(self, queue: TenantQueue, work: int) -> bool:
        """Begin work that fits if nobody waits whose turn it is as soon as there is room."""
        if queue.waiting or not self._fits(queue, work):
            return False
        if any(one.may_begin for one in self._queues.values()):
            return False
        self._begin(queue, work, max(self._virtual, queue.paid_until))
        return True

    def _queue(self, work: int) -> TenantQueue:
        """Return the queue of the caller's tenant, for a request that can be admitted."""
        most = self.largest
        if work > most:
            self._refused[_OVER_CAPACITY] += 1
            raise MeshError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                _OVER_CAPACITY,
                f"the request is {work} {self._unit}; at most {most} {self._unit} fit: send less at once",
            )
        caller = callers.current()
        # No tenant has an empty name: callers without authentication have no share, so a queue of their own.
        tenant = "" if caller is ANYONE else caller.tenant
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = TenantQueue(most)
        queue.most = most
        queue.weight = metering.current().weight
        return queue

    def _may_wait(self, queue: TenantQueue, work: int, queue_s: float) -> bool:
        if not queue.waiting or math.isinf(queue_s):
            return True
        if queue.work + work > self._capacity:
            return False
        weights = sum(one.weight for one in self._queues.values() if one.waiting)
        # Turns of others come in between, at most as many as wait.
        ahead = min(self.waiting, queue.work * weights / queue.weight)
        return (ahead + self._excess(work)) * self._s_per_unit() <= queue_s

    def _begin(self, queue: TenantQueue, work: int, starts_at: float) -> None:
        self._advance()
        self._virtual = starts_at
        queue.paid_until = starts_at + work / queue.weight
        queue.in_flight += work
        self._in_flight += work

    def _begin_waiting(self) -> None:
        """Begin requests in the order of start tags, up to the first that does not fit."""
        while queues := [queue for queue in self._queues.values() if queue.may_begin]:
            queue = min(queues, key=lambda one: one.starts_at)
            one = queue.waiting[0]
            if not self._fits(queue, one.work):
                return
            starts_at = queue.starts_at
            queue.waiting.popleft()
            queue.work -= one.work
            self._begin(queue, one.work, starts_at)
            one.turn.set_result(None)
        if not self._in_flight:
            # Nothing runs or waits: forget who was ahead.
            self._queues.clear()
            self._virtual = 0.0
        for tenant, queue in tuple(self._queues.items()):
            if not (queue.waiting or queue.in_flight) and queue.paid_until <= self._virtual:
                del self._queues[tenant]

    def _give_up(self, queue: TenantQueue, one: _Waiting) -> None:
        queue.waiting.remove(one)
        queue.work -= one.work
        # Others may have waited behind it.
        self._begin_waiting()

    def _refusal(self, queue: TenantQueue, work: int) -> Overloaded:
        # What waits before it in its own queue is what must fit first.
        first = queue.waiting[0].work if queue.waiting else work
        over = queue.in_flight + first - queue.most
        delay = self._delay_s(max(self._excess(work), over))
        if over > 0 and queue.most < self._capacity:
            reason = SHARE_FULL
            what = f"the tenant has {queue.in_flight} of its {queue.most} {self._unit} in flight"
        else:
            reason, what = OVERLOADED, "the service is busy"
        self._refused[reason] += 1
        return Overloaded(
            f"{what}: {work} {self._unit} do not fit now; try again in {delay:.2f} s", delay, reason
        )

    def _advance(self) -> None:
        now = self._clock()
        if self._in_flight:
            elapsed = now - self._seen_at
            fade = 0.5 ** (elapsed / _HALF_LIFE_S)
            self._done *= fade
            self._busy_s = self._busy_s * fade + elapsed
        self._seen_at = now

    def _excess(self, work: int) -> int:
        """Return the work in flight that must end first, [0, inf)."""
        return max(0, self._in_flight + work - self._capacity)

    def _s_per_unit(self) -> float:
        """Return the seconds per unit of all work in flight together; 0 before any measurement."""
        return self._busy_s / self._done if self._done else 0.0

    def _delay_s(self, excess: int) -> float:
        """Return the seconds until so much work has ended, and what waits besides."""
        self._advance()
        ahead = excess + self.waiting
        delay = ahead * self._s_per_unit() if self._done else _UNKNOWN_DELAY_S
        return math.ceil(100 * min(max(delay, _DELAYS_S[0]), _DELAYS_S[1])) / 100


class Admitted:
    """Holds admitted work while a block runs; see :meth:`Admission.admit`."""

    __slots__ = ("_admission", "_queue", "_queue_s", "_work")

    def __init__(self, admission: Admission, work: int, queue_s: float) -> None:
        self._admission = admission
        self._work = work
        self._queue_s = queue_s

    def __enter__(self) -> Self:
        self._queue = self._admission.enter(self._work)
        return self

    def __exit__(self, *exc: object) -> None:
        self._admission.leave(self._work, self._queue)

    async def __aenter__(self) -> Self:
        self._queue = await self._admission.enter_in_turn(self._work, self._queue_s)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._admission.leave(self._work, self._queue)
