"""A circuit breaker: an upstream that gives no answers is left alone for a while."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Final

import grpc

from meshkit.errors import MeshError, Unavailable

_ALMOST: Final = 0.95


class Unanswered(Unavailable):
    """UNAVAILABLE that the other side did not say itself: nobody listens, or the connection broke."""


class Circuit(Enum):
    """The states of a breaker; the value is what metrics show."""

    CLOSED = 0
    """Calls go through."""
    HALF_OPEN = 1
    """One call is let through, to see."""
    OPEN = 2
    """Calls are refused."""


class Breaker:
    """Counts the calls in a row to which an upstream gave no answer, and refuses calls after too many.

    Closed, open, half-open, as in Nygard, Release It!, 2nd edition 2018, "Circuit Breaker". What counts is no
    answer: nobody listened, the connection broke, or ``slow_s`` and more went by without a word. Whatever
    status the upstream says itself shows that it lives, overload and its own failures with it; and a caller
    with too little patience says nothing about it. So nobody can close it to others with bad requests; with
    work that takes longer than ``slow_s`` and says nothing meanwhile one can, so that has to be long enough.
    For one event loop.

    Args:
        name: of the upstream, for messages: ``reranker``.
        failures: calls in a row without an answer after which it opens, [1, inf).
        open_s: how long it refuses calls before it lets one through. Seconds, (0, inf).
        slow_s: shortest time without an answer that counts. Seconds, (0, inf).
        on_change: told of every change of state.
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
        self._probing = False

    @property
    def state(self) -> Circuit:
        """Its state; half-open only while a call is under way to see."""
        return self._state

    @contextmanager
    def watch(self, timeout_s: float) -> Iterator[Callable[[], None]]:
        """Judges by one call, the block; what it gives is to be called at the first sign of life of a stream.

        Args:
            timeout_s: the time that the call has. Seconds.

        Raises:
            MeshError: UNAVAILABLE, ``CIRCUIT_OPEN``: the upstream is left alone, with the time that this will
                still take.
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
            silent = late and not spoke and self._clock() - began >= self._slow_s
            if isinstance(error, Unanswered) or silent:
                self._not_answered()
            elif not late:
                self._answered()
            raise
        except (asyncio.CancelledError, GeneratorExit):
            # The caller's own clock may be quicker than the deadline of its call.
            waited_s = self._clock() - began
            if not spoke and waited_s >= self._slow_s and waited_s >= _ALMOST * timeout_s:
                self._not_answered()
            raise
        else:
            self._answered()
        finally:
            if probe:
                self._probing = False
                if self._state is Circuit.HALF_OPEN:  # nothing was learned
                    self._become(Circuit.OPEN)

    def _enter(self) -> bool:
        """Whether this call is the one that is let through to see."""
        if self._state is Circuit.CLOSED:
            return False
        left = self._opened_at + self._open_s - self._clock()
        if self._probing or left > 0:
            delay = math.ceil(100 * max(left, 0.05)) / 100
            refused = Unavailable(
                "CIRCUIT_OPEN",
                f"the {self._name} did not answer {self._failures} times in a row and is left alone",
            )
            refused.retry_after_s = delay
            raise refused
        self._probing = True
        self._become(Circuit.HALF_OPEN)
        return True

    def _answered(self) -> None:
        self._failures = 0
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
