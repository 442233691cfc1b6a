"""What is written about a running mesh, and the lock that says it runs.

``<home>/run/mesh.lock`` is held (``flock``) for as long as its supervisor lives, so a lock left by a dead one
is no obstacle; ``<home>/run/mesh.json`` says who holds it and where the services are. Both go when the mesh
stops.
"""

import fcntl
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from ragmesh.addresses import VARIABLES

_LOOKERS_S: Final = 0.2
_RETRY_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class ServiceState:
    """One service's process: its address, its process id (None while it is down) and its restarts."""

    address: str
    pid: int | None
    restarts: int


@dataclass(frozen=True, slots=True)
class MeshState:
    """A mesh on this machine.

    Attributes:
        pid: process id of its supervisor.
        ready: whether every service has been serving.
        services: by short name.
    """

    pid: int
    ready: bool = False
    services: Mapping[str, ServiceState] = field(default_factory=dict)

    @property
    def addresses(self) -> dict[str, str]:
        """Address by service, of those that clients call."""
        return {name: service.address for name, service in self.services.items() if name in VARIABLES}


class LockHeldError(Exception):
    """Another mesh runs under the same home.

    Args:
        state: what is known of it; None if it has only just begun to start.
    """

    def __init__(self, state: MeshState | None) -> None:
        super().__init__("a mesh is running already")
        self.state = state


class MeshLock:
    """The right to run the mesh of one home; a context manager that holds it.

    Raises:
        LockHeldError: on entry, if another process has it.
        OSError: on entry, if the home cannot be written to.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        path = _lock_path(self._home)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Whoever only looks whether a mesh runs (see is_locked) holds the lock for a moment.
        deadline = time.monotonic() + _LOOKERS_S
        while self._descriptor is None:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Whoever had the lock before may have removed the file just now: a lock on it means nothing.
                current = _same_file(descriptor, path)
            except BlockingIOError:
                os.close(descriptor)
                if time.monotonic() > deadline:
                    raise LockHeldError(_read(self._home)) from None
                time.sleep(_RETRY_S)
            except OSError:
                os.close(descriptor)
                raise
            else:
                if current:
                    self._descriptor = descriptor
                    # What a killed supervisor left behind must not pass for this mesh.
                    _state_path(self._home).unlink(missing_ok=True)
                else:
                    os.close(descriptor)
        return self

    def write(self, state: MeshState) -> None:
        """Replaces what is said about the mesh, in one step for whoever reads it."""
        path = _state_path(self._home)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(state), indent=1), encoding="utf-8")
        new.replace(path)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._descriptor is not None:
            _state_path(self._home).unlink(missing_ok=True)
            _lock_path(self._home).unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def read_running(home: Path) -> MeshState | None:
    """The mesh that runs under ``home``; None if none does, or it has only just begun to start."""
    return _read(home) if is_locked(home) else None


def is_locked(home: Path) -> bool:
    """Whether a live supervisor holds the lock of ``home``."""
    try:
        descriptor = os.open(_lock_path(home), os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _read(home: Path) -> MeshState | None:
    try:
        record: dict[str, Any] = json.loads(_state_path(home).read_text(encoding="utf-8"))
        services = {name: ServiceState(**service) for name, service in record.pop("services").items()}
        return MeshState(services=services, **record)
    except (OSError, ValueError, KeyError, TypeError):
        # Not there yet, gone just now, or of another version: then nothing is known.
        return None


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _lock_path(home: Path) -> Path:
    return home / "run" / "mesh.lock"


def _state_path(home: Path) -> Path:
    return home / "run" / "mesh.json"
