"""Asks and audits that a server turned away as it stopped or started, and that may come again."""

import time
from typing import Final

from meshkit.errors import MeshError

ATTEMPTS: Final = 6
"""Most times that a call is sent."""
# The last: the connection broke, as it does when a server ends. gRPC then refuses calls until another one
# stands, which takes most of the pauses together on a machine that is busy with a successor's start.
_TURNED_AWAY: Final = frozenset({"STARTING", "SHUTTING_DOWN", "CANCELLED", "UNREACHABLE"})
_FIRST_PAUSE_S: Final = 0.05


class Door:
    """Whether a call that failed may be sent again: nothing of it has reached its caller.

    An ask has effects, so it is not repeated as what only reads is; so has an audit. But a server that is
    being replaced says so before it begins anything, and the first event comes before the first effect: until
    then it may be sent again, to the server's successor. Where a connection broke with the first event on its
    way, the server may have gone on unseen. Then the model was shown two rankings, and both are observed,
    each under its own id.

    Args:
        timeout_s: for all attempts together. Seconds.
    """

    def __init__(self, timeout_s: float) -> None:
        self._ends = time.monotonic() + timeout_s
        self._attempts = 1
        self._passed = False
        self.pause_s = _FIRST_PAUSE_S
        """How long to wait before the next attempt. Seconds."""

    @property
    def left_s(self) -> float:
        """What is left of the time. Seconds."""
        return max(0.001, self._ends - time.monotonic())

    def passed(self) -> None:
        """Something came of the call."""
        self._passed = True

    def opens_again(self, error: MeshError) -> bool:
        """Whether the call that failed so may be sent again; the pause before that doubles."""
        if self._passed or error.reason not in _TURNED_AWAY or self._attempts >= ATTEMPTS:
            return False
        if self._attempts > 1:
            self.pause_s *= 2
        self._attempts += 1
        return self.left_s > self.pause_s
