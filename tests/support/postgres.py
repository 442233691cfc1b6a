"""A PostgreSQL server of a test's own, from the installed binaries; it can be killed and started again."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from sqlalchemy import URL, make_url

from tests.support import ports
from tests.support.programs import required


class Postgres:
    """A server on a free port of this machine.

    Args:
        durable: whether commits wait for the disk, as they must where the server is killed.
        certificate: of TLS, which it then speaks too: chain and key, in PEM.
    """

    def __init__(self, *, durable: bool = False, certificate: tuple[bytes, bytes] | None = None) -> None:
        server = required("postgres")
        if importlib.util.find_spec("asyncpg") is None:
            pytest.skip("asyncpg is not installed")
        self._folder = Path(tempfile.mkdtemp(prefix="evenmesh-postgres-"))
        _give(self._folder)
        self._data = self._folder / "data"
        self._log = self._folder / "log"
        subprocess.run(["cp", "-a", _new_cluster(), self._data], check=True)
        self._port = ports.reserve(self)
        self._command: list[str | Path] = [*_unprivileged(), server, "-D", self._data, "-p", str(self._port)]
        self._command += ["-h", "127.0.0.1", "-k", self._folder, *([] if durable else ["-c", "fsync=off"])]
        if certificate is not None:
            self._command += ["-c", "ssl=on"]
            for name, content in zip(("cert", "key"), certificate, strict=True):
                file = self._folder / f"{name}.pem"
                file.write_bytes(content)
                file.chmod(0o600)
                _give(file)
                self._command += ["-c", f"ssl_{name}_file={file}"]
        self._process: subprocess.Popen[bytes] | None = None
        self._said_before = 0

    @property
    def url(self) -> str:
        """Its URL for SQLAlchemy."""
        return f"postgresql+asyncpg://evenmesh@127.0.0.1:{self._port}/postgres"

    @property
    def pid(self) -> int:
        """Process id of the server, whose children are its backends."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts it and waits until it answers.

        A server that was killed leaves backends which end when they next look, a busy one seconds later; until
        then the next server refuses to start. As whoever supervises a database would, this one tries again.
        """
        ends = time.monotonic() + 60
        self._process = self._spawn()
        while not self._answers():
            assert time.monotonic() < ends, f"PostgreSQL does not answer: {self._said()}"
            if self._process.poll() is not None:
                assert "pre-existing shared memory block" in self._said(), self._said()
                time.sleep(0.2)
                self._process = self._spawn()
            time.sleep(0.1)

    def kill(self) -> None:
        """``kill -9`` of the server; its backends see that it is gone and end."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(30)

    def end(self) -> None:
        """Ends it at once and removes what is left of it."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(30)
        shutil.rmtree(self._folder, ignore_errors=True)

    def empty(self) -> None:
        """Drops all tables."""
        self._psql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")

    def _spawn(self) -> subprocess.Popen[bytes]:
        # Backends of the server before may still write: after what is there, and not over it.
        self._said_before = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, stdout=log, stderr=log, cwd=self._folder)

    def _said(self) -> str:
        return self._log.read_bytes()[self._said_before :].decode(errors="replace")[-8000:]

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=10).close()
        except OSError:
            return False
        return self._psql("SELECT 1", check=False) == 0

    def _psql(self, statement: str, *, check: bool = True) -> int:
        command = [
            required("psql"),
            "-h",
            "127.0.0.1",
            "-p",
            str(self._port),
            "-U",
            "evenmesh",
            "-d",
            "postgres",
            "-q",
        ]
        return subprocess.run([*command, "-c", statement], check=check, capture_output=True).returncode


@contextmanager
def running(*, durable: bool = False) -> Iterator[Postgres]:
    """Start a server, and end it with the block."""
    server = Postgres(durable=durable)
    try:
        server.start()
        yield server
    finally:
        server.end()


def empty_database(request: pytest.FixtureRequest, kind: str, folder: Path) -> URL:
    """Return an empty database of the kind ``sqlite`` or ``postgresql``: a file, or the module's server."""
    if kind == "sqlite":
        return URL.create("sqlite+aiosqlite", database=str(folder / "deep" / "store.db"))
    server: Postgres = request.getfixturevalue("postgres")
    server.empty()
    return make_url(server.url)


@cache
def _new_cluster() -> Path:
    """Return the files of a server that has not run yet, made once: to copy them takes a tenth of the time."""
    folder = Path(tempfile.mkdtemp(prefix="evenmesh-initdb-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _give(folder)
    initdb = [*_unprivileged(), required("initdb"), "-U", "evenmesh", "--auth=trust", "--no-sync"]
    subprocess.run([*initdb, "-D", folder / "data"], check=True, capture_output=True, cwd=folder)
    return folder / "data"


def _unprivileged() -> list[str]:
    """Return what a command begins with, so that root does not run it: as root PostgreSQL refuses to."""
    if os.geteuid() != 0:
        return []
    # Not subprocess's own way: that forks, which gRPC's threads do not survive.
    return [required("setpriv"), "--reuid=nobody", "--regid=nogroup", "--clear-groups"]


def _give(path: Path) -> None:
    """Give a folder or a file to whom PostgreSQL runs as."""
    if os.geteuid() == 0:
        shutil.chown(path, "nobody", "nogroup")
