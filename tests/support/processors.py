"""Processes of tests that stand for other machines leave the processors of this one to the mesh."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

_NICE: Final = 10


def leave_to_others() -> None:
    """Make this process a session of its own that yields the processors to others."""
    os.setsid()
    os.nice(_NICE)
    # Where Linux groups processes by session, niceness counts within a session alone, and this one's beside others.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(f"{_NICE}\n")
