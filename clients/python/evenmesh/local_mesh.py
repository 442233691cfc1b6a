"""Find the mesh that runs on this machine.

The supervisor of a mesh holds a lock (``flock``) on ``<home>/run/mesh.lock`` for as long as it lives, and
writes ``<home>/run/mesh.json``: its process id, and where the services are. Both go when the mesh stops.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evenmesh.services import SERVICES


class LocalMeshError(Exception):
    """Raised when the mesh of this machine cannot be started or stopped; the message says why."""


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
        """Return the addresses of the services that clients call, by name."""
        return {name: service.address for name, service in self.services.items() if name in SERVICES}


def read_running(home: Path) -> MeshState | None:
    """Return the mesh that runs under ``home``; None if none does, or if it has only just begun to start.

    Raises:
        LocalMeshError: its folder cannot be looked at.
    """
    return read_state(home) if is_locked(home) else None


def is_locked(home: Path) -> bool:
    """Return whether a live supervisor holds the lock of ``home``.

    Raises:
        LocalMeshError: it cannot be looked at.
    """
    try:
        descriptor = os.open(lock_path(home), os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise LocalMeshError(
            f"cannot see whether a mesh runs under {home}: {error.filename}: {error.strerror}"
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def read_state(home: Path) -> MeshState | None:
    """Read the state file of the mesh of ``home``; return None if it cannot be read."""
    try:
        record: dict[str, Any] = json.loads(state_path(home).read_text(encoding="utf-8"))
        services = {name: ServiceState(**service) for name, service in record.pop("services").items()}
        return MeshState(services=services, **record)
    except (OSError, ValueError, KeyError, TypeError):
        # Not there yet, just removed, or of another version.
        return None


def lock_path(home: Path) -> Path:
    """Return the file that the supervisor of ``home`` locks."""
    return home / "run" / "mesh.lock"


def state_path(home: Path) -> Path:
    """Return the file that says where the services of ``home`` are."""
    return home / "run" / "mesh.json"
