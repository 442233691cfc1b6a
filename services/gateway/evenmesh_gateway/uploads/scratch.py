"""The folder in which files of uploads are kept until they are answered."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

_PREFIX: Final = "evenmesh-uploads-"
_NEW: Final = ".evenmesh-uploads-"
_LOCK: Final = "lock"


class ScratchFolder:
    """A folder of this process, which is removed at the end.

    The folder is locked as long as its process lives. A process that was killed leaves one behind, which the
    next process beside it removes.

    Args:
        above: the folder to make it in; it is made where it is missing.

    Attributes:
        path: the folder.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, above: Path) -> None:
        above.mkdir(parents=True, exist_ok=True)
        _sweep(above)
        # It has its name once it is locked, so that nobody takes it for one that was left behind.
        new = Path(tempfile.mkdtemp(prefix=_NEW, dir=above))
        self._lock = os.open(new / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = new.rename(above / new.name.replace(_NEW, _PREFIX, 1))

    def close(self) -> None:
        """Remove it, with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _sweep(above: Path) -> None:
    """Remove what processes of this user that are gone have left behind."""
    for one in above.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = one.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                continue
            lock = os.open(one / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(one, ignore_errors=True)
            finally:
                os.close(lock)
