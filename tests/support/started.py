"""Services as users start them, by ``python -m``: those that serve, and those whose start must fail.

Where a test is not about starting, :mod:`tests.support.killable` has processes that need not import.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.waiting import until

Start = Callable[..., subprocess.Popen[str]]
_NOTHING: Mapping[str, str] = MappingProxyType({})


def environment(
    name: str, home: Path, settings: Mapping[str, str], others: Mapping[str, str] = _NOTHING
) -> dict[str, str]:
    """Return the variables of a service at a free port, whose address it writes into ``NAME.address`` of its home."""
    prefix = f"EVENMESH_{name.upper()}_"
    given = {"PORT": "0", "PORT_FILE": str(home / f"{name}.address"), **settings}
    return {
        **os.environ,
        "EVENMESH_HOME": str(home),
        **{prefix + key: value for key, value in given.items()},
        **others,
    }


def start(name: str, home: Path, **settings: str) -> subprocess.Popen[str]:
    """Start a service."""
    command = [sys.executable, "-m", f"evenmesh_{name}"]
    given = environment(name, home, settings)
    return subprocess.Popen(command, env=given, stderr=subprocess.PIPE, text=True)


@contextmanager
def starting(name: str, home: Path, **always: str) -> Iterator[Start]:
    """Give what starts a service with settings; at the end those that still run are killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(**settings: str) -> subprocess.Popen[str]:
        started.append(start(name, home, **always | settings))
        return started[-1]

    try:
        yield begin
    finally:
        for one in started:
            one.kill()
            one.wait()
            assert one.stderr is not None
            one.stderr.close()


async def serving(process: subprocess.Popen[str], name: str, home: Path, *parts: str) -> str:
    """Return the address of a service once all its parts serve; its health says so of each by its name."""
    file = home / f"{name}.address"

    def listens() -> bool:
        assert process.poll() is None, process.communicate()[1]
        return file.exists()

    await until(listens, 300)
    async with grpc.aio.insecure_channel(file.read_text()) as channel:
        health = health_pb2_grpc.HealthStub(channel)

        async def serves() -> bool:
            asked = [health_pb2.HealthCheckRequest(service=part) for part in parts]
            replies = [await health.Check(one, timeout=30) for one in asked]
            return all(one.status == health_pb2.HealthCheckResponse.SERVING for one in replies)

        await until(serves, 300)
    return file.read_text()


def refusal(name: str, home: Path, others: Mapping[str, str] = _NOTHING, **settings: str) -> str:
    """Return what a service says whose start must fail.

    Args:
        name: of the service.
        home: of its files.
        others: further variables of its environment.
        settings: of the service.
    """
    done = subprocess.run(
        [sys.executable, "-m", f"evenmesh_{name}"],
        env=environment(name, home, settings, others),
        stderr=subprocess.PIPE,
        text=True,
        timeout=240,
    )
    assert done.returncode == 2, done.stderr
    return done.stderr


async def end_in_one_line(begin: Start, starts: Mapping[str, Mapping[str, str]]) -> None:
    """Assert that starts with settings, all at once, fail with one line each that says these words."""
    running = {words: begin(**settings) for words, settings in starts.items()}
    for words, one in running.items():
        await until(lambda one=one: one.poll() is not None, 600)
        lines = one.communicate()[1].splitlines()
        assert one.returncode == 2
        assert len(lines) == 1, lines
        assert words in lines[0]
