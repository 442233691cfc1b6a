"""Admission control: work in flight is counted, tenants take turns, and what is too much is refused."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from meshkit import deadline, metering
from meshkit.errors import Overloaded
from meshkit.security import caller as callers

_HALF_LIFE_S: Final = 10.0
_DELAYS_S: Final = (0.05, 30.0)
_UNKNOWN_DELAY_S: Final = 1.0


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request at the door: its work, the virtual time at which it came, and its turn."""

    work: int
    came_at: float
    turn: asyncio.Future[None]


@dataclass(slots=True)
class _Line:
    """The requests of one tenant in order, their work, and up to when what it was given is paid for."""

    weight: float = 1.0
    paid_until: float = 0.0
    work: int = 0
    waiting: deque[_Waiting] = field(default_factory=deque)

    @property
    def starts_at(self) -> float:
        """Start tag of the request that is first in line."""
        return max(self.waiting[0].came_at, self.paid_until)


class Admission:
    """Counts the work a service has taken on. For one event loop; not for several threads.

    What does not fit is refused at once under ``with``; under ``async with`` it may wait for its turn, for at
    most ``queue_s``. Turns go round between tenants in proportion to their weights, whoever asks most: by
    start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996, section 2) with the capacity as its depth
    (SFQ(D): Jin, Chase and Kaur, SIGMETRICS 2004, section 4). Over any time in which two tenants both wait,
    the work begun for each, divided by its weight, differs by at most one request of each over its weight
    (theorem 1 there). A request that gives up before its turn costs its tenant nothing. One that comes after
    a pause has no credit, and its turn is the next, when enough of the work in flight has ended.

    A request is refused without waiting when its tenant has as much work waiting as the capacity, or when
    that would take longer than ``queue_s`` at the throughput seen of late; the first of a tenant may always
    wait.

    Args:
        capacity: most work in flight, in the service's unit, [1, inf).
        unit: plural name of the unit, for messages: ``pairs``, ``tokens``.
        queue_s: longest wait at the door. Seconds, [0, inf).
        clock: monotonic seconds.
    """

    def __init__(
        self,
        capacity: int,
        unit: str,
        *,
        queue_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        if queue_s < 0:
            raise ValueError(f"queue_s must not be negative, got {queue_s}")
        self._capacity = capacity
        self._unit = unit
        self._queue_s = queue_s
        self._clock = clock
        self._on_wait: Callable[[float], None] = lambda _: None
        self._refused = 0
        self._in_flight = 0
        # By tenant; kept while it waits or has been given more than the others.
        self._lines: dict[str, _Line] = {}
        # Virtual time: the start tag of what was begun last.
        self._virtual = 0.0
        # Work done and busy seconds spent on it, fading alike: their ratio is the throughput.
        self._done = 0.0
        self._busy_s = 0.0
        self._seen_at = 0.0

    @property
    def capacity(self) -> int:
        """Most work in flight."""
        return self._capacity

    @property
    def unit(self) -> str:
        """Plural name of the unit of work."""
        return self._unit

    @property
    def refused(self) -> int:
        """Requests refused so far."""
        return self._refused

    def tell(self, on_wait: Callable[[float], None]) -> None:
        """Has ``on_wait`` told how long each request waited whose turn came. Seconds."""
        self._on_wait = on_wait

    @property
    def in_flight(self) -> int:
        """Work in flight, [0, inf): above the capacity only while one oversized request runs alone."""
        return self._in_flight

    @property
    def waiting(self) -> int:
        """Work at the door, [0, inf)."""
        # Copied at once: it is also read from the threads of metrics.
        return sum(line.work for line in tuple(self._lines.values()))

    def admit(self, work: int) -> Admitted:
        """Holds ``work`` units, [0, inf), while a block runs. A request over the capacity runs alone.

        ``with`` takes it at once or not at all, ``async with`` may wait.

        Raises:
            Overloaded: on entering: the capacity would be passed; with the time after which it should fit.
        """
        if work < 0:
            raise ValueError(f"work must not be negative, got {work}")
        return Admitted(self, work)

    def enter(self, work: int) -> None:
        """Takes work on at once, as :meth:`admit` under ``with``; :meth:`leave` gives it back."""
        if not self._fits(work) or any(line.waiting for line in self._lines.values()):
            raise self._refusal(work)
        line = self._line()
        self._begin(line, work, max(self._virtual, line.paid_until))

    async def enter_in_turn(self, work: int) -> None:
        """Takes work on when its turn has come, as :meth:`admit` under ``async with``."""
        if self._fits(work) and not any(line.waiting for line in self._lines.values()):
            self.enter(work)
            return
        wait_s = min(self._queue_s, deadline.current().remaining())
        line = self._line()
        if wait_s <= 0 or not self._may_wait(line, work):
            raise self._refusal(work)
        one = _Waiting(work, self._virtual, asyncio.get_running_loop().create_future())
        line.waiting.append(one)
        line.work += work
        came_at = self._clock()
        try:
            await asyncio.wait((one.turn,), timeout=wait_s)
        except asyncio.CancelledError:
            if one.turn.done():
                self.leave(work)
            else:
                self._give_up(line, one)
            raise
        if not one.turn.done():
            self._give_up(line, one)
            raise self._refusal(work)
        self._on_wait(self._clock() - came_at)

    def leave(self, work: int) -> None:
        """Gives back work that was taken on; whoever is next begins."""
        self._advance()
        self._in_flight -= work
        self._done += work
        self._call_in()

    def _fits(self, work: int) -> bool:
        return not self._in_flight or self._in_flight + work <= self._capacity

    def _line(self) -> _Line:
        """The line of whoever calls."""
        tenant = callers.current().tenant
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = _Line()
        line.weight = metering.current().weight  # as the limits have it now
        return line

    def _may_wait(self, line: _Line, work: int) -> bool:
        if not line.waiting:
            return True
        if line.work + work > self._capacity:
            return False
        weights = sum(one.weight for one in self._lines.values() if one.waiting)
        # Others' turns come in between; not more of them than there are.
        ahead = min(self.waiting, line.work * weights / line.weight)
        return (ahead + self._excess(work)) * self._s_per_unit() <= self._queue_s

    def _begin(self, line: _Line, work: int, starts_at: float) -> None:
        self._advance()
        self._virtual = starts_at
        line.paid_until = starts_at + work / line.weight
        self._in_flight += work

    def _call_in(self) -> None:
        """Begins what fits, in the order of start tags; the first that does not fit waits for room."""
        while lines := [line for line in self._lines.values() if line.waiting]:
            line = min(lines, key=lambda one: one.starts_at)
            one = line.waiting[0]
            if not self._fits(one.work):
                return
            starts_at = line.starts_at
            line.waiting.popleft()
            line.work -= one.work
            self._begin(line, one.work, starts_at)
            one.turn.set_result(None)
        if not self._in_flight:
            # Nobody is here any more: what was given before is forgotten.
            self._lines.clear()
            self._virtual = 0.0
        for tenant, line in tuple(self._lines.items()):
            if not line.waiting and line.paid_until <= self._virtual:
                del self._lines[tenant]

    def _give_up(self, line: _Line, one: _Waiting) -> None:
        line.waiting.remove(one)
        line.work -= one.work
        # It may have been what the others waited behind.
        self._call_in()

    def _refusal(self, work: int) -> Overloaded:
        self._refused += 1
        delay = self._delay_s(work)
        return Overloaded(
            f"{self._in_flight} of {self._capacity} {self._unit} are in flight, {work} more do not fit; "
            f"try again in {delay:.2f} s",
            delay,
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
        """Work in flight that has to leave first; a request over the capacity waits for all."""
        return self._in_flight - max(0, self._capacity - work)

    def _s_per_unit(self) -> float:
        """Seconds per unit of work, all that is in flight together; 0 while nothing was measured."""
        return self._busy_s / self._done if self._done else 0.0

    def _delay_s(self, work: int) -> float:
        self._advance()
        ahead = self._excess(work) + self.waiting
        delay = ahead * self._s_per_unit() if self._done else _UNKNOWN_DELAY_S
        return math.ceil(100 * min(max(delay, _DELAYS_S[0]), _DELAYS_S[1])) / 100


class Admitted:
    """Work that is held while a block runs; see :meth:`Admission.admit`."""

    __slots__ = ("_admission", "_work")

    def __init__(self, admission: Admission, work: int) -> None:
        self._admission = admission
        self._work = work

    def __enter__(self) -> Self:
        self._admission.enter(self._work)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admission.leave(self._work)

    async def __aenter__(self) -> Self:
        await self._admission.enter_in_turn(self._work)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admission.leave(self._work)
