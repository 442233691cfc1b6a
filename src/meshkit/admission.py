"""Admission control: work in flight is counted, and what is too much is refused at the door."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from meshkit.errors import Overloaded

_HALF_LIFE_S: Final = 10.0
_DELAYS_S: Final = (0.05, 30.0)
_UNKNOWN_DELAY_S: Final = 1.0


class Admission:
    """Counts the work a service has taken on. For one event loop; not for several threads.

    Args:
        capacity: most work in flight, in the service's unit, [1, inf).
        unit: plural name of the unit, for messages: ``pairs``, ``tokens``.
        clock: monotonic seconds.
    """

    def __init__(self, capacity: int, unit: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self._capacity = capacity
        self._unit = unit
        self._clock = clock
        self._in_flight = 0
        # Work done and busy seconds spent on it, fading alike: their ratio is the throughput.
        self._done = 0.0
        self._busy_s = 0.0
        self._seen_at = 0.0

    @property
    def capacity(self) -> int:
        """Most work in flight."""
        return self._capacity

    @property
    def in_flight(self) -> int:
        """Work in flight, [0, inf): above the capacity only while one oversized request runs alone."""
        return self._in_flight

    @contextmanager
    def admit(self, work: int) -> Iterator[None]:
        """Holds ``work`` units, [0, inf), until the block ends. A request over the capacity runs alone.

        Raises:
            Overloaded: the capacity would be passed; with the time after which it should fit.
        """
        if work < 0:
            raise ValueError(f"work must not be negative, got {work}")
        if self._in_flight and self._in_flight + work > self._capacity:
            delay = self._delay_s(work)
            raise Overloaded(
                f"{self._in_flight} of {self._capacity} {self._unit} are in flight, {work} more do not fit; "
                f"try again in {delay:.2f} s",
                delay,
            )
        self._advance()
        self._in_flight += work
        try:
            yield
        finally:
            self._advance()
            self._in_flight -= work
            self._done += work

    def _advance(self) -> None:
        now = self._clock()
        if self._in_flight:
            elapsed = now - self._seen_at
            fade = 0.5 ** (elapsed / _HALF_LIFE_S)
            self._done *= fade
            self._busy_s = self._busy_s * fade + elapsed
        self._seen_at = now

    def _delay_s(self, work: int) -> float:
        self._advance()
        # What has to leave first; a request over the capacity waits for all.
        excess = self._in_flight - max(0, self._capacity - work)
        delay = excess * self._busy_s / self._done if self._done else _UNKNOWN_DELAY_S
        return math.ceil(100 * min(max(delay, _DELAYS_S[0]), _DELAYS_S[1])) / 100
