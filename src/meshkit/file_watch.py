"""Files that are read again when they change."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

T = TypeVar("T")

LOOK_EVERY_S: Final = 1.0
"""Least time between two looks at files, where nothing else is said. Seconds."""
_log = logging.getLogger("ragmesh.meshkit.file_watch")


class Watched(Protocol):
    """What is read again while a service runs, as :mod:`meshkit.freshness` sees it. From any thread."""

    @property
    def failures(self) -> int:
        """How often what was there could not be used, [0, inf)."""

    def stale(self) -> bool:
        """Whether what is there now is not what is in force; looks, so that nobody has to have called."""


class WatchedFiles(Generic[T]):
    """What files say together, looked at again when it is wanted. From any thread.

    Changed files that cannot be used leave in force what was before, and the log says so once. They are read
    again at every look then, changed or not: rights to read, or room for one more open file, come back
    without a trace.

    Args:
        paths: the files; whether to read is told by when they were changed, their sizes and inodes.
        read: reads them, or raises ``problem``.
        problem: the exception that says that they cannot be used.
        every_s: least time between two looks. Seconds, [0, inf); default: ``LOOK_EVERY_S``.
        clock: monotonic seconds.

    Raises:
        Exception: ``problem``, when they cannot be used as they are.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        read: Callable[[], T],
        problem: type[Exception],
        *,
        every_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths, self._read, self._problem = tuple(paths), read, problem
        self._every_s, self._clock = LOOK_EVERY_S if every_s is None else every_s, clock
        self._lock = threading.Lock()
        self._seen = self._stamps()
        self._refused: tuple[object, ...] | None = None
        self._failures = 0
        self._content = read()
        self._looked_at = clock()

    @property
    def failures(self) -> int:
        """How often they were changed to what cannot be used, or could no longer be read."""
        return self._failures

    def content(self) -> T:
        """What they say; the same object until they say something else."""
        with self._lock:
            now = self._clock()
            if now - self._looked_at >= self._every_s:
                self._looked_at = now
                self._look()
            return self._content

    def stale(self) -> bool:
        """Whether what they say now cannot be used, so that what was before is in force."""
        self.content()
        return self._refused is not None

    def _look(self) -> None:
        stamps = self._stamps()
        if stamps == self._seen and self._refused is None:
            return
        names = ", ".join(map(str, self._paths))
        try:
            content = self._read()
        except self._problem as error:
            refused = (*stamps, str(error))
            if refused != self._refused:
                self._refused = refused
                self._failures += 1
                _log.warning("%s changed and cannot be used; what was before stays: %s", names, error)
            return
        self._seen, self._refused = stamps, None
        if content != self._content:
            self._content = content
        _log.info("read again", extra={"file": names})

    def _stamps(self) -> tuple[object, ...]:
        stamps: list[object] = []
        for path in self._paths:
            try:
                stat = path.stat()
            except OSError as error:
                stamps.append(error.errno)
            else:
                stamps.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return tuple(stamps)
