"""Services as processes that are killed and started again on the same port; see :mod:`tests.support.forked`."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evenmesh.wire.channel import connect
from tests.support import ports
from tests.support.forked import SERVING, ForkedModule

_HEALTH = "grpc.health.v1.Health"


class Killable:
    """A service's process on a port of its own, which it keeps when it is started again.

    Args:
        module: what it runs, as ``python -m`` does.
        name: the service's short name, as its settings have it.
        home: where everything lives; its log among it.
        settings: its settings.
    """

    def __init__(self, module: str, name: str, home: Path, **settings: str) -> None:
        port = ports.reserve(self)
        self.address = f"127.0.0.1:{port}"
        self.name = name
        self._module = module
        self._environment = dict(os.environ) | {"EVENMESH_HOME": str(home), "HF_HUB_OFFLINE": "1"}
        prefix = f"EVENMESH_{name.upper()}_"
        self._environment |= {
            f"{prefix}{key}": value for key, value in {"PORT": str(port), **settings}.items()
        }
        self.log = home / f"{name}.log"
        self._running: ForkedModule | None = None
        self._imports = SERVING

    def having_imported(self, imports: tuple[str, ...]) -> Killable:
        """Be a fork of a process that has imported these modules."""
        self._imports = imports
        return self

    def also(self, **variables: str) -> Killable:
        """With variables of others too."""
        self._environment |= variables
        return self

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._running is not None
        return self._running.pid

    async def start(self) -> None:
        """Starts it and waits until it serves."""
        self._running = await self._spawned()
        await self.serves()

    async def wait_for_folder(self) -> None:
        """Starts it, and waits until it waits for a folder that another one has; then see :meth:`serves`."""
        self._running = await self._spawned()
        async with asyncio.timeout(600):
            while not self._waits_for_lock():
                assert self._running.poll() is None, f"the {self.name} ended"
                await asyncio.sleep(0.1)

    async def serves(self) -> None:
        """Waits until it serves."""
        assert self._running is not None
        await self._serves(self._running)

    async def replace(self, *, waits_for_end: bool = False) -> None:
        """Starts another process on the port, which it must share, and ends this one when that can answer.

        Args:
            waits_for_end: whether the other waits for a lock that this one has.
        """
        before = self._running
        assert before is not None
        file = self.log.with_suffix(".address")
        file.unlink(missing_ok=True)
        self.also(**{f"EVENMESH_{self.name.upper()}_PORT_FILE": str(file)})
        self._running = await self._spawned()
        async with asyncio.timeout(600):
            while not (self._waits_for_lock() if waits_for_end else file.exists()):
                assert self._running.poll() is None, f"the {self.name} ended"
                await asyncio.sleep(0.1)
        before.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(before.wait, 60) == 0
        await self._serves(self._running)

    def _waits_for_lock(self) -> bool:
        opened = psutil.Process(self.pid).open_files()
        return any(file.path.endswith(".lock") for file in opened)

    async def _spawned(self) -> ForkedModule:
        return await asyncio.to_thread(
            ForkedModule, self._module, self._environment, self.log, imports=self._imports
        )

    async def _serves(self, process: ForkedModule) -> None:
        async with connect(self.address, service=_HEALTH) as channel, asyncio.timeout(300):
            health = health_pb2_grpc.HealthStub(channel)
            while True:
                assert process.poll() is None, f"the {self.name} ended"
                try:
                    reply = await health.Check(health_pb2.HealthCheckRequest(), timeout=5)
                    if reply.status == health_pb2.HealthCheckResponse.SERVING:
                        return
                except grpc.aio.AioRpcError:
                    pass
                await asyncio.sleep(0.1)

    def terminate(self) -> None:
        """Ask it to end."""
        assert self._running is not None
        self._running.send_signal(signal.SIGTERM)

    async def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        self.terminate()
        assert self._running is not None
        assert await asyncio.to_thread(self._running.wait, 60) == 0

    def kill(self) -> None:
        """``kill -9``."""
        if self._running is not None and self._running.poll() is None:
            self._running.send_signal(signal.SIGKILL)
            self._running.wait(30)


@contextmanager
def serving(*services: Killable) -> Iterator[None]:
    """Start services, each when those before it serve; kill them with the block. For who cannot await."""
    try:
        with ThreadPoolExecutor(1) as pool:  # this thread may have an event loop, as Playwright's has
            for one in services:
                pool.submit(asyncio.run, one.start()).result()
        yield
    finally:
        for one in services:
            one.kill()
