"""One writer per folder of collections, across processes."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from services.retriever.ports import CannotStart


class FolderLock:
    """An advisory lock that ends with the process, however it ends.

    Raises:
        CannotStart: another process holds it.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._descriptor)
            raise CannotStart(
                f"another retriever (process {holder}) keeps the collections in {folder}: "
                "stop it, or set RAGMESH_HOME to another folder"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Lets go of the folder."""
        os.close(self._descriptor)
