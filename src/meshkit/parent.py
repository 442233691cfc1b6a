"""Not outliving the process that started this one."""

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
    """Asks Linux for a SIGTERM when the parent ends; elsewhere :func:`gone` alone has to see it."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


async def gone(pid: int) -> None:
    """Returns when process ``pid`` is not this one's parent (any more)."""
    while os.getppid() == pid:  # noqa: ASYNC110 - the system tells no one, it has to be asked
        await asyncio.sleep(_INTERVAL_S)
