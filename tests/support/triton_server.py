"""Real Triton servers for tests, started as ``evenmesh up --generator triton`` starts one.

The fixture ``triton`` of ``tests/conftest.py`` is one server with tiny models that all tests of a session
share; tests that break a server start one of their own with :class:`TritonServer`.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import psutil
import pytest
import tritonclient.grpc

from evenmesh_generator.triton import environment, stubs

START_S = 600.0
STOP_S = 30.0


def skip_where_impossible() -> None:
    """Skips the test on machines that cannot run Triton."""
    reason = environment.refusal()
    if reason is not None:
        pytest.skip(reason)


class TritonServer:
    """A server of these models; a context manager around its run.

    Args:
        folder: its home; logs and repository are there.
        models: folder by name of the model.
        bundled: whether the bundled model is served too, as ``evenmesh-pointer``.
        settings: further variables: ``EVENMESH_TRITON_…``, ``EVENMESH_GENERATOR_…``.
        credentials: of TLS, where the settings make it speak that.

    Attributes:
        target: ``host:port`` of gRPC; the same after :meth:`restart`.
        id: what the server calls itself.
        models: folder by name of the model.
        repository: its model repository.
    """

    def __init__(
        self,
        folder: Path,
        models: Mapping[str, Path],
        *,
        bundled: bool = False,
        settings: Mapping[str, str] | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self.id = f"test-{secrets.token_hex(6)}"
        self.folder = folder
        self.models = dict(models)
        self.log = folder / "triton.log"
        self.repository = folder / "triton" / "repository"
        self._port_file = folder / "port"
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: dict[str, int] = {}
        self._credentials = credentials
        self._settings = {
            "EVENMESH_HOME": str(folder),
            "EVENMESH_TRITON_ID": self.id,
            "EVENMESH_TRITON_PORT_FILE": str(self._port_file),
            "EVENMESH_TRITON_EXIT_WITH_PARENT": "true",
            "EVENMESH_TRITON_PARENT_PID": str(os.getpid()),
            "EVENMESH_GENERATOR_BUNDLED": str(bundled).lower(),
            "EVENMESH_GENERATOR_MODELS": ",".join(f"{name}={path}" for name, path in models.items()),
            "EVENMESH_GENERATOR_DTYPE": "float32",
            "EVENMESH_GENERATOR_DEVICE": "cpu",
            "EVENMESH_GENERATOR_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            **(settings or {}),
        }

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def target(self) -> str:
        """``host:port`` of gRPC."""
        return f"127.0.0.1:{self._ports['grpc']}"

    @property
    def http(self) -> str:
        """URL of HTTP."""
        return f"http://127.0.0.1:{self._ports['http']}"

    @property
    def metrics(self) -> str:
        """URL of the metrics."""
        return f"http://127.0.0.1:{self._ports['metrics']}/metrics"

    @property
    def pid(self) -> int:
        """Process id of what looks after the server; :meth:`stop` ends it."""
        assert self._process is not None
        return self._process.pid

    @property
    def server_pid(self) -> int:
        """Process id of ``tritonserver``, once it has begun."""
        ends = time.monotonic() + 60
        while not (children := psutil.Process(self.pid).children()):
            assert self.running
            assert time.monotonic() < ends
            time.sleep(0.05)
        (child,) = children
        return int(child.pid)

    def stub_pid(self, model: str) -> int:
        """Process id of a model's Python."""
        (found,) = (
            pid
            for pid in stubs.of_server(self.server_pid)
            if any(f"/{model}/" in part for part in psutil.Process(pid).cmdline())
        )
        return int(found)

    @property
    def running(self) -> bool:
        """Whether what looks after the server runs.

        One whose main thread has ended does not, though it cannot be waited for until its other threads have.
        """
        if self._process is None or self._process.poll() is not None:
            return False
        if psutil.Process(self._process.pid).status() != psutil.STATUS_ZOMBIE:
            return True
        self._process.wait(STOP_S)
        return False

    def start(self) -> None:
        """Starts it and waits until every model serves; on the ports it had before, if it ran before."""
        self._port_file.unlink(missing_ok=True)
        names = {"grpc": "PORT", "http": "HTTP_PORT", "metrics": "METRICS_PORT"}
        ports = {f"EVENMESH_TRITON_{name}": str(self._ports.get(key, 0)) for key, name in names.items()}
        begin = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "evenmesh_generator.triton", "serve"],
                env={**os.environ, **ports, **self._settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_S
        while not self._port_file.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise AssertionError(f"Triton does not serve:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.05)
        self._ports = self._announced(begin)
        with tritonclient.grpc.InferenceServerClient(self.target, creds=self._credentials) as client:
            assert client.get_server_metadata().name == self.id

    def stop(self) -> None:
        """Ends it, by process id."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                for child in psutil.Process(self._process.pid).children(recursive=True):
                    child.kill()
                self._process.kill()
                self._process.wait()
                raise

    def restart(self) -> None:
        """Ends it and starts it again on the same ports."""
        self.stop()
        self.start()

    def _announced(self, begin: int) -> dict[str, int]:
        with self.log.open("rb") as lines:
            lines.seek(begin)
            for line in lines:
                if line.startswith(b"{"):
                    reported: dict[str, Any] = json.loads(line)
                    if reported.get("message") == "serving":
                        ports: dict[str, int] = reported["ports"]
                        return ports
        raise AssertionError("the server does not say where it serves")
