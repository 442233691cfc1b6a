"""A circuit breaker: stop calling an upstream that does not answer, for a while."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Final

import grpc

from evenmesh.wire.errors import MeshError, Unavailable

_ALMOST: Final = 0.95


class Unanswered(Unavailable):
    """UNAVAILABLE that the upstream did not send itself: nobody listens, or the connection broke."""


class Circuit(Enum):
    """The states of a breaker; metrics report the value."""

    CLOSED = 0
    """Calls pass."""
    HALF_OPEN = 1
    """One call passes, as a probe."""
    OPEN = 2
    """Calls are rejected."""


class Breaker:
    """Counts unanswered calls in a row to an upstream, and rejects calls after too many.

    Closed, open, half-open, as in Nygard, Release It!, 2nd edition 2018, "Circuit Breaker". A call is
    unanswered if nobody listened, the connection broke, or ``slow_s`` and more passed in silence, in which no
    other call was answered either. Any status that the upstream sends itself shows that it lives, overload
    and its own failures included; a timeout shorter than ``slow_s`` shows nothing. So bad or slow requests of
    one caller cannot open it while others are answered; silent work longer than ``slow_s`` can where nobody
    is, so choose ``slow_s`` long enough. For one event loop.

    Args:
        name: upstream, for messages: ``reranker``.
        failures: unanswered calls in a row after which it opens, [1, inf).
        open_s: time that it rejects calls before it lets a probe pass. Seconds, (0, inf).
        slow_s: shortest silence that counts as unanswered. Seconds, (0, inf).
        on_change: called with every new state.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        *,
        failures: int = 5,
        open_s: float = 2.0,
        slow_s: float = 5.0,
        on_change: Callable[[Circuit], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._most = failures
        self._open_s = open_s
        self._slow_s = slow_s
        self._on_change = on_change
        self._clock = clock
        self._state = Circuit.CLOSED
        self._failures = 0
        self._opened_at = 0.0
        self._answered_at = -math.inf
        self._probing = False

    @property
    def state(self) -> Circuit:
        """Return the state; half-open only while a probe runs."""
        return self._state

    def check(self) -> None:
        """Refuse a call that has to wait for its turn, if :meth:`watch` would refuse it now.

        Raises:
            MeshError: as :meth:`watch`.
        """
        left = self._opened_at + self._open_s - self._clock()
        if self._state is Circuit.CLOSED or (left <= 0 and not self._probing):
            return
        refused = Unavailable(
            "CIRCUIT_OPEN",
            f"the {self._name} did not answer {self._failures} times in a row and is not called for now",
        )
        refused.retry_after_s = math.ceil(100 * max(left, 0.05)) / 100
        raise refused

    @contextmanager
    def watch(self, timeout_s: float) -> Iterator[Callable[[], None]]:
        """Judge the upstream by the call in the block.

        Yields a function to call at the first message of a stream.

        Args:
            timeout_s: timeout of the call. Seconds.

        Raises:
            MeshError: UNAVAILABLE, ``CIRCUIT_OPEN``: the breaker is open; with the time until the next probe.
        """
        probe = self._enter()
        began = self._clock()
        spoke = False

        def answered() -> None:
            nonlocal spoke
            spoke = True
            self._answered()

        try:
            yield answered
        except MeshError as error:
            late = error.code is grpc.StatusCode.DEADLINE_EXCEEDED
            if isinstance(error, Unanswered) or (late and not spoke and self._silent_since(began)):
                self._not_answered()
            elif not late:
                self._answered()
            raise
        except (asyncio.CancelledError, GeneratorExit):
            # The caller's own timer may fire before the deadline of its call.
            almost = self._clock() - began >= _ALMOST * timeout_s
            if not spoke and almost and self._silent_since(began):
                self._not_answered()
            raise
        else:
            self._answered()
        finally:
            if probe:
                self._probing = False
                if self._state is Circuit.HALF_OPEN:  # the probe showed nothing
                    self._become(Circuit.OPEN)

    def _enter(self) -> bool:
        """Return whether this call is the probe."""
        self.check()
        if self._state is Circuit.CLOSED:
            return False
        self._probing = True
        self._become(Circuit.HALF_OPEN)
        return True

    def _silent_since(self, began: float) -> bool:
        """Return whether no call has been answered since, for so long that it counts."""
        return self._clock() - began >= self._slow_s and self._answered_at <= began

    def _answered(self) -> None:
        self._failures = 0
        self._answered_at = self._clock()
        self._become(Circuit.CLOSED)

    def _not_answered(self) -> None:
        self._failures += 1
        if self._failures >= self._most:
            self._opened_at = self._clock()
            self._become(Circuit.OPEN)

    def _become(self, state: Circuit) -> None:
        if state is not self._state:
            self._state = state
            self._on_change(state)
