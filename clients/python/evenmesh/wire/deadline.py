"""The deadline of the call being served, and the part of it that calls made for it may use."""

from __future__ import annotations

import math
import time
from contextvars import ContextVar
from typing import Final

from evenmesh.wire.errors import DeadlineExceeded

LONGEST_BUDGET_S: Final = 86_400.0
"""Largest budget, as gRPC takes no infinite timeout. Seconds."""


class Deadline:
    """A point in monotonic time."""

    __slots__ = ("_at",)

    def __init__(self, at: float) -> None:
        self._at = at

    @staticmethod
    def after(seconds: float) -> Deadline:
        """Return the deadline ``seconds`` from now; infinity means none."""
        return Deadline(time.monotonic() + seconds)

    def remaining(self) -> float:
        """Return the time left. Seconds, [0, inf]."""
        return max(0.0, self._at - time.monotonic())

    @property
    def expired(self) -> bool:
        """Return whether no time is left."""
        return self.remaining() <= 0.0

    def budget(self, *, cap_s: float | None = None, margin_s: float = 0.02) -> float:
        """Return the timeout of the next call: the time left less ``margin_s``, at most ``cap_s``.

        Seconds, (0, 86400]. This service keeps the margin for its own answer.

        Raises:
            DeadlineExceeded: nothing is left.
        """
        left = min(self.remaining() - margin_s, LONGEST_BUDGET_S if cap_s is None else cap_s)
        if left <= 0.0:
            raise DeadlineExceeded("no time is left for the next step of this call")
        return min(left, LONGEST_BUDGET_S)


NEVER: Final = Deadline(math.inf)
"""The deadline of work that no call waits for."""

_current: ContextVar[Deadline] = ContextVar("kit_deadline", default=NEVER)


def current() -> Deadline:
    """Return the deadline of the RPC being served; :data:`NEVER` outside one."""
    return _current.get()


def enter(deadline: Deadline) -> None:
    """Make ``deadline`` the current one for the rest of the running task."""
    _current.set(deadline)
