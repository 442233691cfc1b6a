"""What Triton's Python backend keeps in ``/dev/shm``, and what killed servers leave behind."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from services.generator.triton import stubs

FOLDER: Final = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory is on Linux
_NAME: Final = re.compile(r"ragmesh-triton-(\d+)-")


def prefix() -> str:
    """Prefix of the regions of a server that this process runs."""
    return f"ragmesh-triton-{os.getpid()}-"


def sweep(folder: Path = FOLDER) -> list[str]:
    """Ends processes of models whose server's owner is gone, and removes regions those owners left.

    Returns:
        The names of the regions removed.
    """
    stubs.kill(stubs.of_regions(_is_left))
    return [name for path in folder.glob("ragmesh-triton-*") if _is_left(path.name) for name in _remove(path)]


def sweep_own(folder: Path = FOLDER) -> list[str]:
    """Removes what the server of this process left; only after its end."""
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
