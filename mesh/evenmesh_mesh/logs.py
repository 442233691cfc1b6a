"""Keep one log file per service: restarted with the mesh, bounded while it runs."""

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 32 << 20
"""Size at which a log is moved aside while its service runs."""

_TAIL_BYTES: Final = 64 << 10


class ServiceLog:
    """The log file of one service; the previous one is kept as ``<name>.log.1``."""

    def __init__(self, folder: Path, service: str) -> None:
        self.path = folder / f"{service}.log"
        self._old = folder / f"{service}.log.1"

    def begin(self) -> None:
        """Move the log of the last mesh aside."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self.path.replace(self._old)
        self.path.touch()

    def open(self) -> int:
        """Open a descriptor to append to; the caller closes it."""
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def trim(self, max_bytes: int = MAX_BYTES) -> None:
        """Move the content aside if it exceeds ``max_bytes``; the service continues with an empty file.

        A log that was removed, or that finds no room beside it, stays as it is until the next time.
        """
        with contextlib.suppress(OSError):
            if self.path.stat().st_size > max_bytes:
                shutil.copyfile(self.path, self._old)
                os.truncate(self.path, 0)

    def complaint(self) -> str:
        """Return the last line that is not a JSON log line; empty if there is none.

        A service writes such a line when it cannot start, and Python as the last line of a stack trace.
        """
        try:
            with self.path.open("rb") as stream:
                stream.seek(0, os.SEEK_END)
                stream.seek(max(0, stream.tell() - _TAIL_BYTES))
                lines = stream.read().decode(errors="replace").splitlines()
        except OSError:  # somebody removed it
            return ""
        said = [line.strip() for line in lines if line.strip() and not _is_json(line)]
        return said[-1] if said else ""


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
