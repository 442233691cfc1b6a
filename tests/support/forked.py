"""Modules that run as processes which need not import: forks of one that imported once, by multiprocessing.

What a service imports takes longer than the rest of its start, and PyTorch longer than all of it. Tests that kill a
service and start it again are about what it does then; that ``python -m`` starts each is shown by its own tests, by
those of the mesh and by those of the images. All forks hash strings alike.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from threading import Lock
from typing import Final
from unittest.mock import patch

SERVING: Final = ("tests.support.forked_imports",)
"""What services import at their start."""
LEARNING: Final = (
    *SERVING,
    "evenmesh_training.online.__main__",
    "evenmesh_training.online.served",
    "transformers.models.bert.modeling_bert",
)
"""The same, and what the trainer imports, and a reranker with models that are trained on: longer than all the others.

A file whose processes do so has ``pytest.mark.xdist_group("learning")``, so that it is imported once.
"""

_FORKS: Final = multiprocessing.get_context("forkserver")
_STARTING: Final = Lock()


class ForkedModule:
    """A process that runs a module as ``python -m`` does; as :class:`subprocess.Popen` to who ends it.

    Args:
        module: the module or package.
        environment: its variables.
        log: the file that its standard error is added to; made with its folder where it is missing.
        arguments: of its command line.
        imports: modules that the process it is a fork of has imported.

    Attributes:
        pid: its process id.
    """

    def __init__(
        self,
        module: str,
        environment: Mapping[str, str],
        log: Path,
        arguments: Sequence[str] = (),
        *,
        imports: tuple[str, ...] = SERVING,
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        # As a daemon, because else the end of this process waits for one that a test left.
        self._process = _FORKS.Process(
            target=_run, args=(module, dict(environment), log, arguments), daemon=True
        )
        with (
            _STARTING,
            patch.object(forkserver, "connect_to_new_process", _server(imports).connect_to_new_process),
        ):
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return its exit status; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit status.

        Raises:
            subprocess.TimeoutExpired: it runs on.
        """
        self._process.join(timeout)
        status = self._process.exitcode
        if status is None:
            raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0.0)
        return status

    def send_signal(self, sent: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, sent)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """``kill -9``."""
        self.send_signal(signal.SIGKILL)


@cache
def _server(imports: tuple[str, ...]) -> forkserver.ForkServer:
    """Return what forks a process that has imported these: multiprocessing itself has but one such."""
    server = forkserver.ForkServer()
    server.set_forkserver_preload(list(imports))
    return server


def _run(module: str, environment: Mapping[str, str], log: Path, arguments: Sequence[str]) -> None:
    """Be the process of the module: in the fork."""
    os.environ.clear()
    os.environ.update(environment)
    with log.open("ab") as opened:
        os.dup2(opened.fileno(), sys.stderr.fileno())
    sys.argv = [module, *arguments]
    sys.modules.pop(f"{module}.__main__", None)  # imported, but to be run
    runpy.run_module(module, run_name="__main__", alter_sys=True)
