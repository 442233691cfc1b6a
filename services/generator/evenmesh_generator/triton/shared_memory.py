"""Clean up what Triton's Python backend leaves in ``/dev/shm``."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from evenmesh_generator.triton import stubs

FOLDER: Final = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory is on Linux
_NAME: Final = re.compile(r"evenmesh-triton-(\d+)-")


def prefix() -> str:
    """Return the prefix of the regions of a server that this process runs."""
    return f"evenmesh-triton-{os.getpid()}-"


def sweep(folder: Path = FOLDER) -> list[str]:
    """Kill model processes whose server's owner is gone, and remove the regions those owners left.

    Returns:
        The names of the regions removed.
    """
    stubs.kill(stubs.of_regions(_is_left))
    return [
        name for path in folder.glob("evenmesh-triton-*") if _is_left(path.name) for name in _remove(path)
    ]


def sweep_own(folder: Path = FOLDER) -> list[str]:
    """Remove what the server of this process left; call it only after the server's end."""
    return [name for path in folder.glob(f"{prefix()}*") for name in _remove(path)]


def _is_left(region: str) -> bool:
    match = _NAME.match(region)
    return match is not None and not _lives(int(match[1]))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's
    return True


def _remove(path: Path) -> list[str]:
    try:
        path.unlink(missing_ok=True)
    except PermissionError:
        return []
    return [path.name]
