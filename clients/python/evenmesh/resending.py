"""Decide whether a call that failed may be sent again."""

import random
import time
from typing import Final

from evenmesh.wire.errors import MeshError

ATTEMPTS: Final = 6
"""Most times that a call is sent, other than to a service that says that it starts or ends."""
LEAST_S: Final = 0.001
"""Least time that an attempt is given. Seconds."""
BROKEN: Final = "UNREACHABLE"
"""Reason where the connection broke, as it does when a server ends, or there was none."""
_PASSING: Final = frozenset({"STARTING", "SHUTTING_DOWN"})
_NOT_BEGUN: Final = frozenset({*_PASSING, "CANCELLED", BROKEN})
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
_JITTER: Final = 0.2


class Resending:
    """Allows a failed call to be sent again while none of its replies has arrived.

    An ask has effects, so it is not retried like a call that only reads; nor is an audit. But a server that
    is being replaced says so before it begins anything, and the first event comes before the first effect:
    until then the call may go to the next server. Where a connection breaks with the first event on its way,
    the server may have continued unseen. Then the model was shown two rankings, and both are observed, each
    under its own id.

    What a service rejects for any other reason, such as too much work, is not sent again.

    Args:
        timeout_s: time for all attempts together. Seconds.
        whole: whether the caller forgets replies, so that the call may begin again once where the connection
            breaks between them.

    Attributes:
        begun: whether a reply arrived; set it.
        pause_s: how long to wait before the next attempt. Seconds.
    """

    def __init__(self, timeout_s: float, *, whole: bool = False) -> None:
        self._whole = whole
        self._ends = time.monotonic() + timeout_s
        self._attempts = 1
        self._pause_s = _FIRST_PAUSE_S / 2
        self.begun = False
        self.pause_s = 0.0

    @property
    def left_s(self) -> float:
        """Return the time that is left. Seconds."""
        return max(LEAST_S, self._ends - time.monotonic())

    def allows(self, error: MeshError, *, patient: bool = False) -> bool:
        """Return whether a call that failed with ``error`` may be sent again; draw a longer pause each time.

        Args:
            error: how it failed.
            patient: whether to wait for a service that starts or ends until no time is left.
        """
        if self.begun:
            if not self._whole or error.reason != BROKEN:
                return False
            self._whole = self.begun = False
        if error.reason not in _NOT_BEGUN:
            return False
        waits = patient and error.reason in _PASSING
        if self._attempts >= ATTEMPTS and not waits:
            return False
        self._attempts += not waits
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        drawn = self._pause_s * random.uniform(1 - _JITTER, 1 + _JITTER)
        self.pause_s = max(drawn, error.retry_after_s or 0.0)
        return self.left_s > self.pause_s
