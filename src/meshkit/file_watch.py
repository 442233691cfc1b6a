"""A file that is read again when it changes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_LOOK_EVERY_S: Final = 1.0
_log = logging.getLogger("ragmesh.meshkit.file_watch")


class WatchedFile(Generic[T]):
    """What a file says now, looked at again at most once a second.

    A changed file that cannot be used leaves in force what was before, and the log says so.

    Args:
        path: the file.
        read: reads it, or raises ``problem``.
        problem: the exception that says that it cannot be used.
        clock: monotonic seconds.

    Raises:
        Exception: ``problem``, when it cannot be used as it is.
    """

    def __init__(
        self,
        path: Path,
        read: Callable[[Path], T],
        problem: type[Exception],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._read, self._problem, self._clock = path, read, problem, clock
        self._seen = self._stamp()
        self._content = read(path)
        self._looked_at = clock()

    def content(self) -> T:
        """What it says; the same object until it is read again."""
        now = self._clock()
        if now - self._looked_at < _LOOK_EVERY_S:
            return self._content
        self._looked_at = now
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._content = self._read(self._path)
            except self._problem as error:
                _log.warning("%s changed and cannot be used; what was before stays: %s", self._path, error)
            else:
                _log.info("read again", extra={"file": str(self._path)})
        return self._content

    def _stamp(self) -> object:
        try:
            stat = self._path.stat()
        except OSError as error:
            return error.errno
        return stat.st_mtime_ns, stat.st_size, stat.st_ino
