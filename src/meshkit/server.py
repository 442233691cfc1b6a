"""The server every service runs in: bind, health, reflection, start, serve, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, Self

import grpc
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from meshkit import keepalive, parent
from meshkit.file_watch import WatchedFiles
from meshkit.guard import Guard
from meshkit.limits import Limits, LimitsError
from meshkit.metering import Metering
from meshkit.readiness import Readiness
from meshkit.security.door import Door, DoorError
from meshkit.security.triton import TritonTls
from meshkit.settings import ServiceSettings, SettingsError, variable
from meshkit.telemetry import Telemetry
from meshkit.watchers import Watchers

_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING
_LAME_DUCK_S: Final = 0.05
_LAST_BYTES_S: Final = 0.1
_log = logging.getLogger("ragmesh.meshkit.server")


class ServerStartError(Exception):
    """The service cannot start; one line that says what to do."""


@dataclass(frozen=True)
class Registration:
    """A servicer and how it is added to a server.

    Attributes:
        add: the generated ``add_<Service>Servicer_to_server``.
        servicer: the servicer.
        name: full name of the service, ``ragmesh.retriever.v1.RetrieverService``.
    """

    add: Callable[[Any, grpc.aio.Server], None]
    servicer: object
    name: str


class Lifecycle(Protocol):
    """What a service does around serving."""

    async def start(self) -> None:
        """Loads what is needed to answer; the service is NOT_SERVING until it returns."""

    async def stop(self) -> None:
        """Lets go of everything, after the last call."""


class MeshServer:
    """A gRPC server around the servicers of one service.

    Health answers from :meth:`start` on, NOT_SERVING until the lifecycle's ``start`` has returned; other
    calls are refused with UNAVAILABLE until then. Use it as an async context manager, or through
    :func:`serve` in a process of its own. With a ``readiness``, health is NOT_SERVING also while that says
    so; calls are let in all the same.
    """

    def __init__(
        self,
        name: str,
        settings: ServiceSettings,
        registrations: Sequence[Registration],
        lifecycle: Lifecycle,
        *,
        telemetry: Telemetry,
        readiness: Readiness | None = None,
    ) -> None:
        self._name = name
        self._settings = settings
        self._names = [registration.name for registration in registrations]
        self._lifecycle = lifecycle
        self._readiness = Readiness() if readiness is None else readiness
        self._following: asyncio.Task[None] | None = None
        self._started = False
        self._stopping: asyncio.Task[None] | None = None
        self._end_by = math.inf
        self._hurry = asyncio.Event()
        self._port = 0
        self._port_file: os.stat_result | None = None
        self._guard = Guard(
            settings.default_deadline_s,
            max_message_bytes=settings.max_message_bytes,
            max_stream_s=settings.max_stream_s,
        )
        self._watchers = Watchers()
        try:
            self._door = Door.of(settings)
        except DoorError as error:
            raise ServerStartError(str(error)) from None
        if self._door.certificates is not None:
            telemetry.freshness.certificates("server", self._door.certificates)
        if isinstance(settings, TritonTls):
            telemetry.freshness.holder("triton", settings.triton_shown)
        for file, source in self._door.watched.items():
            telemetry.freshness.watch(file, source)
        self._server = grpc.aio.server(
            interceptors=[
                *telemetry.server_interceptors(),
                self._guard,
                self._door.authentication,
                *_metering(settings, telemetry),
                self._watchers,
            ],
            options=[
                # Off, so that a second server on the port is an error and not half of the answers; unless it
                # is the one that takes over.
                ("grpc.so_reuseport", int(settings.share_port)),
                ("grpc.max_send_message_length", settings.max_message_bytes),
                ("grpc.max_receive_message_length", settings.max_message_bytes),
                *settings.connection_age,
                *keepalive.SERVER,
            ],
        )
        for registration in registrations:
            registration.add(registration.servicer, self._server)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            [*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server
        )

    @property
    def address(self) -> str:
        """``host:port`` as bound."""
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        return f"{host}:{self._port}"

    @property
    def in_flight(self) -> int:
        """Calls running now, health and reflection aside."""
        return self._guard.in_flight

    async def idle(self) -> None:
        """Waits until no call runs."""
        await self._guard.idle()

    async def start(self) -> None:
        """Binds, answers health, loads, serves.

        Raises:
            ServerStartError: the address or the port file cannot be had.
        """
        shared = self._settings.share_port
        if shared:
            # Whoever connects must not be sent to a process that is not ready while another one is.
            await self._lifecycle.start()
            self._guard.open()
        try:
            self._bind()
            await self._set_health(_NOT_SERVING)
            await self._health.set("live", _SERVING)  # for whoever restarts what does not answer at all
            await self._server.start()
            if self._settings.port_file is not None:
                self._write_port_file(self._settings.port_file)
            if not shared:
                await self._lifecycle.start()
        except BaseException:
            await self._server.stop(0)
            self._remove_port_file()
            if shared:
                await self._lifecycle.stop()
            raise
        self._started = True
        self._guard.open()
        await self._set_health(_SERVING if self._readiness.ready else _NOT_SERVING)
        self._following = asyncio.create_task(self._follow())
        _log.info(
            "serving",
            extra={
                "address": self.address,
                "door": self._door.described,
                "max_message_bytes": self._settings.max_message_bytes,
            },
        )

    async def stop(self, grace_s: float | None = None) -> None:
        """Takes no new calls, gives running ones ``grace_s`` (default: the settings'), then ends them.

        Returns as soon as the last call is over. Calling it again with less time shortens the wait.
        """
        grace_s = self._settings.grace_s if grace_s is None else grace_s
        self._end_by = min(self._end_by, asyncio.get_running_loop().time() + grace_s)
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        self._hurry.set()
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
        await self._health.enter_graceful_shutdown()
        self._guard.close()
        if self._started:
            # Whatever gRPC has queued when its server stops is CANCELLED, which no channel tries again. So
            # what is under way gets the time to arrive and be refused as UNAVAILABLE.
            await asyncio.sleep(min(self._left_s(), _LAME_DUCK_S))
        # Once, and never with less time later: two stops at a time can crash the process (grpcio 1.85). So
        # calls and watchers are ended here and not by gRPC.
        stopping = asyncio.create_task(self._server.stop(self._left_s() + _LAST_BYTES_S))
        await self._drained()
        self._guard.end()
        self._watchers.end()
        # A call that will not be cancelled is left behind; the process ends.
        await asyncio.wait((stopping,), timeout=self._left_s() + 2 * _LAST_BYTES_S)
        if self._started:
            self._started = False
            self._remove_port_file()
            await self._lifecycle.stop()
            _log.info("stopped")

    async def _drained(self) -> None:
        """Waits until no call runs or the time given for it, which may be shortened meanwhile, is over."""
        idle = asyncio.create_task(self._guard.idle())
        while not idle.done() and self._left_s():
            self._hurry.clear()
            hurried = asyncio.create_task(self._hurry.wait())
            await asyncio.wait((idle, hurried), timeout=self._left_s(), return_when=asyncio.FIRST_COMPLETED)
            hurried.cancel()
        idle.cancel()

    def _left_s(self) -> float:
        return max(0.0, self._end_by - asyncio.get_running_loop().time())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def _follow(self) -> None:
        """Shows in health whether the service can answer."""
        async with contextlib.aclosing(self._readiness.changes()) as changes:
            async for ready in changes:
                await self._set_health(_SERVING if ready else _NOT_SERVING)

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", *self._names):
            await self._health.set(name, status)

    def _bind(self) -> None:
        host, port = self._settings.host, self._settings.port
        try:
            _probe(host, port, shared=self._settings.share_port)
            self._port = port
            if self._door.credentials is None:
                self._port = self._server.add_insecure_port(self.address)
            else:
                self._port = self._server.add_secure_port(self.address, self._door.credentials)
        except (OSError, RuntimeError) as error:
            port_variable, host_variable = (variable(self._settings, field) for field in ("port", "host"))
            match getattr(error, "errno", None):
                case errno.EADDRINUSE | None:
                    why = f"port {port} is taken on {host}: stop what listens there or set {port_variable}"
                case errno.EACCES:
                    why = f"port {port} needs more rights than this user has: set {port_variable}"
                case _:
                    why = f"cannot listen on {host}: {getattr(error, 'strerror', error)}: set {host_variable}"
            raise ServerStartError(why) from None

    def _write_port_file(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f"{path.name}.{os.getpid()}")
            beside.write_text(self.address)
            self._port_file = beside.stat()
            beside.replace(path)
        except OSError as error:
            name = variable(self._settings, "port_file")
            raise ServerStartError(f"cannot write {path}: {error.strerror}: set {name}") from None

    def _remove_port_file(self) -> None:
        path, written = self._settings.port_file, self._port_file
        if path is not None and written is not None:
            # Not that of a successor, which says the same where the port is shared.
            with contextlib.suppress(OSError):
                if os.path.samestat(path.stat(), written):
                    path.unlink()


def _metering(settings: ServiceSettings, telemetry: Telemetry) -> tuple[Metering, ...]:
    """What holds calls against their tenant's limits, where there are any."""
    if settings.limits is None:
        return ()
    try:
        file = WatchedFiles((settings.limits,), partial(Limits.read, settings.limits), LimitsError)
    except LimitsError as error:
        raise ServerStartError(f"RAGMESH_LIMITS: {error}") from None
    telemetry.freshness.watch("limits", file)
    return (Metering(file, telemetry.meter),)


def _probe(host: str, port: int, *, shared: bool) -> None:
    """Binds and lets go, for the reason that gRPC does not give when binding fails."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        probe.bind(address)
        if not shared:  # it would be given callers of the other process
            probe.listen(1)


async def serve(
    name: str,
    settings: ServiceSettings,
    registrations: Sequence[Registration],
    lifecycle: Lifecycle,
    *,
    telemetry: Telemetry,
    readiness: Readiness | None = None,
) -> None:
    """Runs a service until SIGTERM or SIGINT, or, if so set, until its parent is gone.

    The first signal drains within ``grace_s``; a second one ends running calls at once.

    Raises:
        ServerStartError: it cannot start; one line that says what to do.
    """
    ending = asyncio.Event()
    hurry = asyncio.Event()

    def on_signal() -> None:
        (hurry if ending.is_set() else ending).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    waits: list[asyncio.Task[Any]] = [asyncio.create_task(ending.wait())]
    if settings.exit_with_parent:
        parent.stop_with_parent()
        waits.append(asyncio.create_task(parent.gone(settings.parent_pid or os.getppid())))
    server = MeshServer(name, settings, registrations, lifecycle, telemetry=telemetry, readiness=readiness)
    starting = asyncio.create_task(server.start())
    try:
        await asyncio.wait((starting, *waits), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        else:
            starting.cancel()
            await asyncio.wait((starting,))
        ending.set()
    finally:
        draining = asyncio.create_task(server.stop())
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait((draining, hurried), return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            await server.stop(0)
        await draining
        for task in (*waits, hurried):
            task.cancel()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        telemetry.shutdown()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Runs a service's main coroutine on uvloop and returns its exit code.

    0 after a clean stop, 2 when it could not start for a reason that stderr tells in one line.
    """
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
    except (SettingsError, ServerStartError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0
