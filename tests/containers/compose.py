"""Run the mesh of ``compose.yaml`` by podman-compose: its network, names, ports, volumes and limits as they stand."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from tests.containers.engine import Engine
from tests.support.images import ROOT

TOOLS: Final = ("podman-compose", "catatonit", "dnsmasq")
"""Of pip; of Debian's `catatonit`, which is the first process; and of `dnsmasq-base`, which knows the services' names."""
FILE: Final = ROOT / "compose.yaml"
_PROJECT: Final = "evenmesh-test"


def missing() -> list[str]:
    """Return the tools that are not there."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def ports() -> dict[str, int]:
    """Return the port of each service on this machine."""
    services = yaml.safe_load(FILE.read_text(encoding="utf-8"))["services"]
    return {name: int(one["ports"][0].split(":")[1]) for name, one in services.items()}


class Composed:
    """A mesh that podman-compose has started.

    Args:
        engine: has the images.
        folder: where logs and the files of this run go.
    """

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine = engine
        self._folder = folder.resolve()
        self._podman = self._folder / "podman"
        self._also = self._folder / "compose.also.yaml"

    @contextmanager
    def running(self, images: Mapping[str, str]) -> Iterator[None]:
        """Run the mesh; afterwards it is ended and its volumes are gone.

        Args:
            images: by service, the image that stands for the one which compose.yaml would build.

        Raises:
            CalledProcessError: it was not started.
        """
        self._podman.write_text(f'#!/bin/sh\nexec {shlex.join(self._engine.podman())} "$@"\n')
        self._podman.chmod(0o755)
        # A health check would ask systemd for a timer; the limits are those of this user.
        here = {"healthcheck": {"disable": True}, "ulimits": {"nofile": 20_000, "nproc": 10_000}}
        self._also.write_text(yaml.safe_dump({"services": dict.fromkeys(images, here)}))
        for name, image in images.items():
            self._run("tag", image, f"localhost/evenmesh-{name}:compose")
        try:
            self._compose("up", "--detach", "--no-build")
            yield
        finally:
            self._compose("down", "--volumes", check=False)

    def pid(self, service: str) -> int:
        """Return the process id of a service's first process."""
        return int(self._state(service)["Pid"])

    def log(self, service: str) -> str:
        """Return what a service has written."""
        done = subprocess.run(
            [str(self._podman), "logs", self._name(service)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout

    def runs(self, service: str) -> bool:
        """Return whether a service runs and has not been started again."""
        state = self._state(service)
        return bool(state["Running"]) and not self._inspected(service)["RestartCount"]

    def stop(self, service: str) -> int:
        """End a service within its grace; return its status."""
        self._compose("stop", service)
        return int(self._state(service)["ExitCode"])

    def _name(self, service: str) -> str:
        return f"{_PROJECT}_{service}_1"

    def _state(self, service: str) -> dict[str, Any]:
        state: dict[str, Any] = self._inspected(service)["State"]
        return state

    def _inspected(self, service: str) -> dict[str, Any]:
        (found,) = json.loads(self._run("inspect", "--type", "container", self._name(service)))
        inspected: dict[str, Any] = found
        return inspected

    def _run(self, *arguments: str) -> str:
        done = subprocess.run([str(self._podman), *arguments], stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    def _compose(self, *arguments: str, check: bool = True) -> None:
        files = ("--file", str(FILE), "--file", str(self._also))
        command: Sequence[str] = (
            "podman-compose",
            *("--podman-path", str(self._podman), "--in-pod", "false", "--project-name", _PROJECT),
            *files,
            *arguments,
        )
        with (self._folder / "compose.log").open("ab") as log:
            subprocess.run(command, cwd=self._folder, stdout=log, stderr=log, check=check)
