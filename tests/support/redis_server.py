"""A Redis server of a test's own, from the installed binary; it can be killed and started again."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import ports
from tests.support.programs import required

_STARTS_S = 60.0


class RedisServer:
    """A server on a free port of this machine.

    Args:
        durable: whether every write is on disk before it is acknowledged; else nothing ever is.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self._program = required("redis-server")
        self._durable = ("--appendonly", "yes", "--appendfsync", "always") if durable else ()
        self._folder = Path(tempfile.mkdtemp(prefix="evenmesh-redis-"))
        self._port = ports.reserve(self)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its URL."""
        return f"redis://127.0.0.1:{self._port}/0"

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it answers: it reads its file first."""
        self._process = subprocess.Popen(
            [
                self._program,
                "--port",
                str(self._port),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--dir",
                self._folder,
                *self._durable,
            ],
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + _STARTS_S
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self._port)) as connection:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(16).startswith(b"+PONG"):
                        return
            except OSError:
                pass
            assert time.monotonic() < deadline, "redis-server does not answer"
            assert self._process.poll() is None, "redis-server has ended"
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill it; it forgets what is not on disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def end(self) -> None:
        """Kill it and remove its folder."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def running(*, durable: bool = False) -> Iterator[RedisServer]:
    """A server that runs while the block does.

    Args:
        durable: whether every write is on disk before it is acknowledged; else nothing ever is.
    """
    server = RedisServer(durable=durable)
    try:
        server.start()
        yield server
    finally:
        server.end()
