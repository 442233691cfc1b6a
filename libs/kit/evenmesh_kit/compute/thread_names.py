"""Names of threads that the system shows: in ``top -H``, in profilers, and to ``evenmesh bench``."""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path
from typing import Final

_OWN: Final = Path("/proc/thread-self/comm")


def name_thread() -> None:
    """Give the running thread its name in Python to the system too, of which Linux keeps 15 bytes.

    Elsewhere, and where a sandbox forbids it, it does nothing. The main thread has the name of the process.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            _OWN.write_bytes(threading.current_thread().name.encode()[:15])
