"""A token bucket: a rate, and a burst of at most its size."""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """A bucket that fills at a constant rate up to its size. For one event loop.

    Args:
        per_s: rate of new tokens. Per second, (0, inf).
        size: most tokens that it holds, (0, inf); it begins full.
        clock: monotonic seconds.
    """

    def __init__(self, per_s: float, size: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        if per_s <= 0 or size <= 0:
            raise ValueError(f"per_s and size must be positive, got {per_s} and {size}")
        self._per_s = per_s
        self._size = size
        self._clock = clock
        self._level = size
        self._seen_at = clock()

    @property
    def full(self) -> bool:
        """Return whether it holds as many tokens as it can."""
        return self.wait_s(self._size) == 0.0

    def wait_s(self, tokens: float = 1.0) -> float:
        """Return the time until it has that many tokens, or is full. Seconds, [0, inf)."""
        now = self._clock()
        self._level = min(self._size, self._level + (now - self._seen_at) * self._per_s)
        self._seen_at = now
        return max(0.0, (min(tokens, self._size) - self._level) / self._per_s)

    def take(self, tokens: float = 1.0) -> float:
        """Take tokens and return 0; or take none and return the time until it has enough. Seconds."""
        wait = self.wait_s(tokens)
        if wait == 0.0:
            self._level -= tokens
        return wait

    def spend(self, tokens: float) -> None:
        """Take tokens even if it has fewer; the debt is refilled first. A negative number gives back."""
        self.wait_s()
        self._level -= tokens
