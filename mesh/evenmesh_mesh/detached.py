"""Start, find and stop a mesh whose supervisor is a separate process."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from evenmesh.local_mesh import LocalMeshError, MeshState, is_locked, read_running
from evenmesh_mesh.process import STOP_MARGIN_S
from evenmesh_mesh.progress import Observe, Phase, Progress, unobserved
from evenmesh_mesh.services import STOP_ORDER, Service
from evenmesh_mesh.settings import DEFAULT_GRACE_S, MeshSettings
from evenmesh_mesh.supervisor import MeshStartError, cannot_write

SUPERVISOR_LOG: Final = "mesh.log"
"""Log of the supervisor itself, beside the services'."""

_POLL_S: Final = 0.05
_STATE_S: Final = 2.0
_MARGIN_S: Final = 20.0


class MeshStopError(LocalMeshError):
    """Raised when the mesh cannot be stopped; one line that says why."""


def launch(settings: MeshSettings, observe: Observe = unobserved) -> MeshState:
    """Start the mesh of ``settings.home`` in the background and wait until every service serves.

    Raises:
        MeshStartError: it cannot start; nothing is left running.
    """
    try:
        settings.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = os.open(settings.logs / SUPERVISOR_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as exc:
        raise MeshStartError(cannot_write(exc, settings.home)) from exc
    try:
        process = subprocess.Popen(  # noqa: S603 - this Python, with arguments of our own
            [sys.executable, "-P", "-m", "evenmesh_mesh", dump(settings)],
            env=os.environ | settings.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            text=True,
        )
    finally:
        os.close(log)
    with _ended_on_failure(process):
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        with process.stdout as lines:
            for line in lines:
                message = json.loads(line)
                match message:
                    case {"ready": True}:
                        state = read_running(settings.home)
                        if state is not None:
                            return state
                    case {"error": str(error)}:
                        raise MeshStartError(error)
                    case _:
                        observe(Progress(message["service"], Phase(message["phase"]), message["detail"]))
        raise MeshStartError(f"the supervisor ended while starting; see {settings.logs / SUPERVISOR_LOG}")


def stop(home: Path, *, grace_s: float = DEFAULT_GRACE_S) -> MeshState | None:
    """Stop the mesh of ``home``, however it was started, and wait until all of its processes have ended.

    Args:
        home: the home of the mesh.
        grace_s: time that each layer of services gets to finish its calls. Seconds.

    Returns:
        The state of the mesh that ran; None if none did.

    Raises:
        MeshStopError: it still runs.
    """
    state = _find(home)
    if state is None:
        return None
    try:
        os.kill(state.pid, signal.SIGTERM)
        if not _unlocked(home, len(STOP_ORDER) * (grace_s + STOP_MARGIN_S) + _MARGIN_S):
            # Its services end with their parent.
            os.kill(state.pid, signal.SIGKILL)
            if not _unlocked(home, _MARGIN_S):
                raise MeshStopError(f"the supervisor (pid {state.pid}) does not end")
    except ProcessLookupError:
        pass  # it ended just before the signal
    except PermissionError as exc:
        raise MeshStopError(f"the mesh belongs to another user (pid {state.pid})") from exc
    return state


def dump(settings: MeshSettings) -> str:
    """Write the settings as JSON, without ``environment``, which may hold secrets and is inherited."""
    return json.dumps(asdict(replace(settings, environment={})), default=str)


def load(text: str) -> MeshSettings:
    """Read settings that :func:`dump` wrote."""
    record: dict[str, Any] = json.loads(text)
    services = tuple(
        Service(
            **{
                **one,
                **{name: tuple(one[name]) for name in ("needs", "thread_settings", "arguments")},
                "settings": tuple((name, value) for name, value in one["settings"]),
            }
        )
        for one in record.pop("services")
    )
    return MeshSettings(home=Path(record.pop("home")), services=services, **record)


@contextmanager
def _ended_on_failure(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill the supervisor, and so its services, if the block fails or is interrupted."""
    try:
        yield
    except BaseException:
        process.terminate()
        try:
            process.wait(_MARGIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


def _find(home: Path) -> MeshState | None:
    """Find the mesh of ``home``; wait briefly for one that has the lock and has not written its state yet."""
    deadline = time.monotonic() + _STATE_S
    while is_locked(home):
        if (state := read_running(home)) is not None:
            return state
        if time.monotonic() > deadline:
            raise MeshStopError(f"the mesh under {home} is still starting or already ending; try again")
        time.sleep(_POLL_S)
    return None


def _unlocked(home: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while is_locked(home):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
