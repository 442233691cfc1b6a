"""Names of threads that the system shows: in ``top -H``, in profilers, and to ``evenmesh bench``."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
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


@contextlib.contextmanager
def threads_begin_as(name: str) -> Iterator[None]:
    """Name the threads that the running thread starts within the context, which take its name on Linux.

    It is for libraries that start threads of their own: without, theirs have the name of whoever loaded them.
    Elsewhere, and where a sandbox forbids it, it does nothing.

    Args:
        name: of which Linux keeps 15 bytes.
    """
    before = None
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            before = _OWN.read_bytes().rstrip(b"\n")
            _OWN.write_bytes(name.encode()[:15])
    try:
        yield
    finally:
        if before is not None:
            with contextlib.suppress(OSError):
                _OWN.write_bytes(before)
