"""Hold the lock of a running mesh, and write its state (:mod:`evenmesh.local_mesh` reads both).

The supervisor holds ``<home>/run/mesh.lock`` (``flock``) for as long as it lives, so a lock file that a dead
one left is no obstacle. Both files are removed when the mesh stops.
"""

import fcntl
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Final, Self

from evenmesh.local_mesh import MeshState, lock_path, read_state, state_path

_LOOKERS_S: Final = 2.0
"""How long those who only look may keep the lock taken, one after the other, on a busy machine. Seconds."""
_RETRY_S: Final = 0.005


class LockHeldError(Exception):
    """Raised when another mesh runs under the same home.

    Args:
        state: its state; None if it has only begun to start.
    """

    def __init__(self, state: MeshState | None) -> None:
        super().__init__("a mesh is running already")
        self.state = state


class MeshLock:
    """A context manager that holds the lock of one home.

    Raises:
        LockHeldError: on entry, if another process holds it.
        OSError: on entry, if the home cannot be written to.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        path = lock_path(self._home)
        path.parent.mkdir(parents=True, exist_ok=True)
        # A process that only checks for a running mesh (is_locked) holds the lock for a moment.
        deadline = time.monotonic() + _LOOKERS_S
        while self._descriptor is None:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The previous holder may have removed the file just now: then a lock on it is worthless.
                current = _same_file(descriptor, path)
            except BlockingIOError:
                os.close(descriptor)
                if time.monotonic() > deadline:
                    raise LockHeldError(read_state(self._home)) from None
                time.sleep(_RETRY_S)
            except OSError:
                os.close(descriptor)
                raise
            else:
                if current:
                    self._descriptor = descriptor
                    # Do not mistake the state that a killed supervisor left for that of this mesh.
                    state_path(self._home).unlink(missing_ok=True)
                else:
                    os.close(descriptor)
        return self

    def write(self, state: MeshState) -> None:
        """Replace the state of the mesh atomically."""
        path = state_path(self._home)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(state), indent=1), encoding="utf-8")
        new.replace(path)

    def __exit__(self, *exc: object) -> None:
        if self._descriptor is not None:
            state_path(self._home).unlink(missing_ok=True)
            lock_path(self._home).unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
