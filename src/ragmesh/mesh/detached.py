"""A mesh whose supervisor is a process of its own: started, found and stopped from another one."""

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

from ragmesh.mesh.progress import Observe, Phase, Progress, unobserved
from ragmesh.mesh.services import Service
from ragmesh.mesh.settings import DEFAULT_GRACE_S, MeshSettings
from ragmesh.mesh.state import MeshState, is_locked, read_running
from ragmesh.mesh.supervisor import MeshStartError, cannot_write

SUPERVISOR_LOG: Final = "mesh.log"
"""Log of the supervisor itself, beside the services'."""

_POLL_S: Final = 0.05
_STATE_S: Final = 2.0
_MARGIN_S: Final = 20.0


class MeshStopError(Exception):
    """The mesh could not be stopped; one line that says why."""


def launch(settings: MeshSettings, observe: Observe = unobserved) -> MeshState:
    """Starts the mesh of ``settings.home`` in the background and waits until every service serves.

    Raises:
        MeshStartError: it cannot start; nothing is left running then.
    """
    try:
        settings.logs.mkdir(parents=True, exist_ok=True)
        log = os.open(settings.logs / SUPERVISOR_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as exc:
        raise MeshStartError(cannot_write(exc, settings.home)) from exc
    try:
        process = subprocess.Popen(  # noqa: S603 - this Python, with arguments of our own
            [sys.executable, "-P", "-m", "ragmesh.mesh", dump(settings)],
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
                told = json.loads(line)
                match told:
                    case {"ready": True}:
                        state = read_running(settings.home)
                        if state is not None:
                            return state
                    case {"error": str(error)}:
                        raise MeshStartError(error)
                    case _:
                        observe(Progress(told["service"], Phase(told["phase"]), told["detail"]))
        raise MeshStartError(f"the supervisor ended while starting; see {settings.logs / SUPERVISOR_LOG}")


def stop(home: Path, *, grace_s: float = DEFAULT_GRACE_S) -> MeshState | None:
    """Stops the mesh of ``home``, however it was started, and waits until nothing of it is left.

    Args:
        home: whose mesh.
        grace_s: seconds that each layer of services gets to end its calls.

    Returns:
        What ran; None if nothing did.

    Raises:
        MeshStopError: it still runs.
    """
    state = _find(home)
    if state is None:
        return None
    try:
        os.kill(state.pid, signal.SIGTERM)
        if not _unlocked(home, 3 * grace_s + _MARGIN_S):
            # Its services end with it.
            os.kill(state.pid, signal.SIGKILL)
            if not _unlocked(home, _MARGIN_S):
                raise MeshStopError(f"the supervisor (pid {state.pid}) does not end")
    except ProcessLookupError:
        pass  # ended between the look and the signal
    except PermissionError as exc:
        raise MeshStopError(f"the mesh belongs to another user (pid {state.pid})") from exc
    return state


def dump(settings: MeshSettings) -> str:
    """The settings as JSON, but for ``environment``: it may hold secrets, and travels as itself."""
    return json.dumps(asdict(replace(settings, environment={})), default=str)


def load(text: str) -> MeshSettings:
    """The settings from :func:`dump`."""
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
    """Ends the supervisor, and with it the services, if the block fails or is interrupted."""
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
    """The mesh of ``home``; waits a moment for one that has the lock and has not said yet who it is."""
    deadline = time.monotonic() + _STATE_S
    while is_locked(home):
        if (state := read_running(home)) is not None:
            return state
        if time.monotonic() > deadline:
            raise MeshStopError(f"the mesh under {home} does not say who it is; try again")
        time.sleep(_POLL_S)
    return None


def _unlocked(home: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while is_locked(home):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
