"""How a model's process ends."""

from __future__ import annotations

import signal
from typing import Final

_S: Final = 0.25


def exit_soon() -> None:
    """Make the system end this process in a moment, whatever Python does until then.

    For ``finalize``, when nothing is left to do. Python's own end takes seconds with torch loaded, for which
    Triton's exit timeout is too short; and it destroys objects of the Python backend whose shared memory is
    gone by then, which crashes or hangs it.
    """
    signal.setitimer(signal.ITIMER_REAL, _S)  # SIGALRM, which by default ends a process
