"""Stop when the process that started this one ends."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_INTERVAL_S: Final = 0.5


def stop_with_parent() -> None:
    """Ask Linux for a SIGTERM when the parent ends; elsewhere only :func:`wait_until_gone` notices it."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


async def wait_until_gone(pid: int) -> None:
    """Wait until process ``pid`` is not, or no longer, this one's parent."""
    while os.getppid() == pid:  # noqa: ASYNC110 - the system has no event for it
        await asyncio.sleep(_INTERVAL_S)
