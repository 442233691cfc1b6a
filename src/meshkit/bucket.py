"""A token bucket: so much a second, and no more at once than it holds."""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """Fills at a constant rate up to its size. For one event loop.

    Args:
        per_s: tokens that come in a second, (0, inf).
        size: most that it holds, (0, inf); it begins full.
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

    def wait_s(self, tokens: float = 1.0) -> float:
        """Seconds until that many are there, [0, inf); of more than the size, until it is full."""
        now = self._clock()
        self._level = min(self._size, self._level + (now - self._seen_at) * self._per_s)
        self._seen_at = now
        return max(0.0, (min(tokens, self._size) - self._level) / self._per_s)

    def take(self, tokens: float = 1.0) -> float:
        """Takes tokens if they are there: 0, or the seconds until they will be, and nothing is taken."""
        wait = self.wait_s(tokens)
        if wait == 0.0:
            self._level -= tokens
        return wait

    def spend(self, tokens: float) -> None:
        """Takes tokens whether they are there or not; what is owed comes back first."""
        self.wait_s()
        self._level -= tokens
