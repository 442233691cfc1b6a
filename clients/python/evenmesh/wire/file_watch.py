"""Read files again when they change."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

T = TypeVar("T")

CHECK_EVERY_S: Final = 1.0
"""Least time between two checks of files by default. Seconds."""
_log = logging.getLogger("evenmesh.kit.file_watch")


class Watched(Protocol):
    """A source that is read again while a service runs; thread-safe.

    ``evenmesh_kit.telemetry.reload_monitor`` reports on it.
    """

    @property
    def failures(self) -> int:
        """Return how often the source became unusable, [0, inf)."""

    def stale(self) -> bool:
        """Check the source and return whether its current content is not the one in use."""


class WatchedFiles(Generic[T]):
    """The content of files, checked for changes on use; thread-safe.

    If changed files cannot be used, the earlier content stays in use and the log says so once. They are then
    read at every check, changed or not: permissions or free file descriptors return without a change.

    Args:
        paths: the files; a change of modification time, size or inode means that they are read again.
        read: reads them, or raises ``problem``.
        problem: exception for files that cannot be used.
        every_s: least time between two checks. Seconds, [0, inf); default: ``CHECK_EVERY_S``.
        clock: monotonic seconds.
        on_change: called with the earlier and the new content, after a change.

    Raises:
        Exception: ``problem``, if the files cannot be used at the start.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        read: Callable[[], T],
        problem: type[Exception],
        *,
        every_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[T, T], None] | None = None,
    ) -> None:
        self._on_change = on_change
        self._paths, self._read, self._problem = tuple(paths), read, problem
        self._every_s, self._clock = CHECK_EVERY_S if every_s is None else every_s, clock
        self._lock = threading.Lock()
        self._seen = self._stamps()
        self._refused: tuple[object, ...] | None = None
        self._failures = 0
        self._content = read()
        self._checked_at = clock()

    @property
    def failures(self) -> int:
        """Return how often the files became unusable or unreadable."""
        return self._failures

    def content(self) -> T:
        """Return the content; the same object until it changes."""
        with self._lock:
            now = self._clock()
            if now - self._checked_at >= self._every_s:
                self._checked_at = now
                self._check()
            return self._content

    def stale(self) -> bool:
        """Check the files and return whether they are unusable, so that earlier content is in use."""
        self.content()
        return self._refused is not None

    def _check(self) -> None:
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
                _log.warning("%s changed and cannot be used; earlier content stays in use: %s", names, error)
            return
        self._seen, self._refused = stamps, None
        if content != self._content:
            before, self._content = self._content, content
            if self._on_change is not None:
                self._on_change(before, content)
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
