"""Decide whether an ask or an audit that failed may be sent again."""

import time
from typing import Final

from evenmesh.wire.errors import MeshError

ATTEMPTS: Final = 6
"""Most times that a call is sent."""
# UNREACHABLE: the connection broke, as it does when a server ends. gRPC then fails calls until it is
# connected again, which takes most of the pauses together while the next server's start loads the machine.
_BROKEN: Final = "UNREACHABLE"
_NOT_BEGUN: Final = frozenset({"STARTING", "SHUTTING_DOWN", "CANCELLED", _BROKEN})
_FIRST_PAUSE_S: Final = 0.05


class Resending:
    """Allows a failed call to be sent again while none of its replies has arrived.

    An ask has effects, so it is not retried like a call that only reads; nor is an audit. But a server that
    is being replaced says so before it begins anything, and the first event comes before the first effect:
    until then the call may go to the next server. Where a connection breaks with the first event on its way,
    the server may have continued unseen. Then the model was shown two rankings, and both are observed, each
    under its own id.

    Args:
        timeout_s: time for all attempts together. Seconds.

    Attributes:
        begun: whether a reply arrived; set it.
        pause_s: how long to wait before the next attempt. Seconds.
    """

    def __init__(self, timeout_s: float, *, whole: bool = False) -> None:
        self._whole = whole
        self._ends = time.monotonic() + timeout_s
        self._attempts = 1
        self.begun = False
        self.pause_s = _FIRST_PAUSE_S

    @property
    def left_s(self) -> float:
        """Return the time that is left. Seconds."""
        return max(0.001, self._ends - time.monotonic())

    def allows(self, error: MeshError) -> bool:
        """Return whether a call that failed with ``error`` may be sent again; double the pause each time."""
        if self.begun:
            if not self._whole or error.reason != _BROKEN:
                return False
            self._whole = self.begun = False
        if error.reason not in _NOT_BEGUN or self._attempts >= ATTEMPTS:
            return False
        if self._attempts > 1:
            self.pause_s *= 2
        self._attempts += 1
        return self.left_s > self.pause_s
