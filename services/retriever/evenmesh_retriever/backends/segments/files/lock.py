"""Lock a folder of collections against other processes of this machine."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from evenmesh_retriever.ports import CannotStart

LOCK: Final = ".lock"
"""The file that is locked."""
_LOOK_S: Final = 0.01


class FolderLock:
    """An advisory lock that ends with the process, however it ends. Waits for it: make it in a thread.

    Args:
        folder: the folder.
        wait_s: how long to wait for another process that holds it. Seconds, [0, inf).
        given_up: whether nobody waits for this any more.

    Raises:
        CannotStart: another process still holds it then.
    """

    def __init__(
        self, folder: Path, *, wait_s: float = 0.0, given_up: Callable[[], bool] = lambda: False
    ) -> None:
        self._descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        ends = time.monotonic() + wait_s
        while not self._taken():
            if time.monotonic() < ends and not given_up():
                time.sleep(_LOOK_S)
                continue
            holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._descriptor)
            raise CannotStart(
                f"another retriever (process {holder}) keeps the collections in {folder}: "
                "stop it, or set EVENMESH_HOME to another folder"
            )
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def _taken(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Let go of the folder."""
        os.close(self._descriptor)
