"""The deadline of the call being served, and what of it may be handed on."""

from __future__ import annotations

import math
import time
from contextvars import ContextVar
from typing import Final

from meshkit.errors import DeadlineExceeded

LONGEST_BUDGET_S: Final = 86_400.0
"""Largest budget handed out: gRPC takes no infinite timeout."""


class Deadline:
    """A point in monotonic time."""

    __slots__ = ("_at",)

    def __init__(self, at: float) -> None:
        self._at = at

    @staticmethod
    def after(seconds: float) -> Deadline:
        """The deadline ``seconds`` from now, in seconds; infinity for none."""
        return Deadline(time.monotonic() + seconds)

    def remaining(self) -> float:
        """Seconds left, in [0, inf]."""
        return max(0.0, self._at - time.monotonic())

    @property
    def expired(self) -> bool:
        """Whether no time is left."""
        return self.remaining() <= 0.0

    def budget(self, *, cap_s: float | None = None, margin_s: float = 0.02) -> float:
        """Seconds to give the next call, in (0, 86400]: what is left less ``margin_s``, at most ``cap_s``.

        The margin is what this service keeps for its own answer.

        Raises:
            DeadlineExceeded: nothing is left.
        """
        left = min(self.remaining() - margin_s, LONGEST_BUDGET_S if cap_s is None else cap_s)
        if left <= 0.0:
            raise DeadlineExceeded("no time is left for the next step of this call")
        return min(left, LONGEST_BUDGET_S)


NEVER: Final = Deadline(math.inf)
"""The deadline of work that no call is waiting for."""

_current: ContextVar[Deadline] = ContextVar("meshkit_deadline", default=NEVER)


def current() -> Deadline:
    """Deadline of the RPC being served; :data:`NEVER` outside one."""
    return _current.get()


def enter(deadline: Deadline) -> None:
    """Makes ``deadline`` the current one for the rest of the running task."""
    _current.set(deadline)
