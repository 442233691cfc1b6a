"""Start, check and stop the process of one service."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evenmesh.types.status import Health
from evenmesh.wire.channel import connect
from evenmesh_mesh.health import http_health
from evenmesh_mesh.logs import ServiceLog
from evenmesh_mesh.services import Service

_HEALTH: Final = "grpc.health.v1.Health"
_CHECK_S: Final = 2.0
_POLL_S: Final = 0.1
STOP_MARGIN_S: Final = 2.0
"""Time that a service gets to end after its grace. Seconds."""


class ServiceProcess:
    """The process of a running service; :meth:`start` makes one."""

    def __init__(self, service: Service, address: str, process: asyncio.subprocess.Process) -> None:
        self.service = service
        self.address = address
        self._process = process

    @classmethod
    async def start(
        cls, service: Service, address: str, environment: Mapping[str, str], log: ServiceLog
    ) -> "ServiceProcess":
        """Start the service's module with this Python; its output goes to its log."""
        descriptor = log.open()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # the working directory may hold packages with the names of ours
                "-m",
                service.module,
                *service.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                env=dict(environment),
                # Ctrl-C goes to the supervisor, which stops the services in order. One session for all: where
                # Linux groups processes by session, niceness counts within a session alone.
                process_group=0,
            )
        finally:
            os.close(descriptor)
        if service.nice:
            yield_processors(process.pid, service.nice)
        return cls(service, address, process)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it still runs."""
        return self._process.returncode is None

    async def ended(self) -> int:
        """Wait for its end; return the exit status, negative for a signal."""
        return await self._process.wait()

    async def serving(self) -> None:
        """Wait until its health check says SERVING; may wait for ever, so race it with :meth:`ended`."""
        if self.service.health == "http":
            while True:
                if await http_health(self.address) is Health.SERVING:
                    return
                await asyncio.sleep(_POLL_S)
        async with connect(self.address, service=_HEALTH) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while True:
                try:
                    reply = await stub.Check(
                        health_pb2.HealthCheckRequest(), timeout=_CHECK_S, wait_for_ready=True
                    )
                except grpc.aio.AioRpcError:
                    pass
                else:
                    if reply.status == health_pb2.HealthCheckResponse.SERVING:
                        return
                await asyncio.sleep(_POLL_S)

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM, wait ``grace_s`` and a little, then kill it."""
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), grace_s + STOP_MARGIN_S)
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def kill(self) -> None:
        """Kill it and its children at once."""
        if self.running:
            # It may have ended before the event loop was notified.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.running:
            self._process.send_signal(number)


def yield_processors(pid: int, nice: int) -> None:
    """Let a process yield the processors to the other services.

    Args:
        pid: its number.
        nice: how far, as ``nice`` counts, added to this process's, [0, 19].
    """
    with contextlib.suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0) + nice)
