"""The server of every service: bind, health, reflection, start, serve, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, Self, TypeVar

import grpc
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from evenmesh.wire import keepalive
from evenmesh.wire.file_watch import WatchedFiles
from evenmesh.wire.methods import largest_request_bytes
from evenmesh_kit.admission.limits import Limits, LimitsError, TenantLimits, built_in, record_changes
from evenmesh_kit.admission.metering import Metering
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.admission.shared_rates import SharedRates
from evenmesh_kit.compute import idle_memory
from evenmesh_kit.rpc import parent_process as parent
from evenmesh_kit.rpc.guard import Guard
from evenmesh_kit.rpc.handlers import Chain, HandlerInterceptor
from evenmesh_kit.rpc.health_port import health_server
from evenmesh_kit.rpc.readiness import Readiness
from evenmesh_kit.rpc.replies import ReplyWriter
from evenmesh_kit.rpc.requests import RequestReader, UnreadRequests
from evenmesh_kit.rpc.runtime_streams import RuntimeStreams
from evenmesh_kit.security.audit import AuditedMethods
from evenmesh_kit.security.listener import ListenerSecurity, ListenerSecurityError
from evenmesh_kit.security.triton_tls import TritonTls
from evenmesh_kit.settings import ServiceSettings, SettingsError, load, variable
from evenmesh_kit.telemetry import logs
from evenmesh_kit.telemetry.setup import Telemetry

_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING
_LAME_DUCK_S: Final = 0.05
_LAST_BYTES_S: Final = 0.1
_SWITCH_S: Final = 0.001
"""How long a thread computes in Python while another one wants to. Seconds.

A model takes and leaves Python's lock hundreds of times for one answer, and waits so long each time. Beside a
thread that computes in Python it takes three times as long as alone with Python's 5 ms, and twice with this.
"""
GIVE_BACK_S: Final = 30.0
"""Time between two moments at which a process that answers no call gives memory back. Seconds."""
_log = logging.getLogger("evenmesh.kit.server")

S = TypeVar("S", bound=ServiceSettings)


class ServerStartError(Exception):
    """Raised when a service cannot start; one line that says what to do."""


@dataclass(frozen=True)
class Registration:
    """A servicer, and how to add it to a server.

    Attributes:
        add: the generated ``add_<Service>Servicer_to_server``.
        servicer: the servicer.
        name: full name of the service, ``evenmesh.retriever.v1.RetrieverService``.
    """

    add: Callable[[Any, grpc.aio.Server], None]
    servicer: object
    name: str


class Service(Protocol):
    """What a process serves, and what it does before and after serving; subclass it for the defaults."""

    registrations: Sequence[Registration] = ()
    """What it serves."""
    readiness: Readiness | None = None
    """Whether it is ready, if that may change while it runs."""

    async def start(self) -> None:
        """Load what is needed to answer; the service is NOT_SERVING until it returns."""

    async def stop(self) -> None:
        """Release everything, after the last call."""


class MeshServer:
    """A gRPC server with the servicers of one service.

    From :meth:`start` on health answers NOT_SERVING, and other calls get UNAVAILABLE, until the service's
    ``start`` returns. Use it as an async context manager, or run a process with :func:`serve`. With a
    ``readiness``, health is NOT_SERVING also while the service is not ready; calls are still accepted.
    """

    def __init__(
        self, name: str, settings: ServiceSettings, service: Service, *, telemetry: Telemetry
    ) -> None:
        self._settings = settings
        self._names = [registration.name for registration in service.registrations]
        self._service = service
        self._readiness = Readiness() if service.readiness is None else service.readiness
        self._health_task: asyncio.Task[None] | None = None
        self._started = False
        self._stopping: asyncio.Task[None] | None = None
        self._end_by = math.inf
        self._hurry = asyncio.Event()
        self._port = 0
        self._port_file = contextlib.ExitStack()
        largest = min(
            settings.max_message_bytes,
            max(
                (largest_request_bytes(name) or settings.max_message_bytes for name in self._names),
                default=settings.max_message_bytes,
            ),
        )
        self._guard = Guard(
            settings.default_deadline_s,
            max_message_bytes=largest,
            max_call_s=settings.max_call_s,
            max_stream_s=settings.max_stream_s,
        )
        self._runtime_streams = RuntimeStreams()
        try:
            self._security = ListenerSecurity.of(settings)
        except ListenerSecurityError as error:
            raise ServerStartError(str(error)) from None
        if self._security.certificates is not None:
            telemetry.reloads.watch_certificates("server", self._security.certificates)
        if isinstance(settings, TritonTls):
            telemetry.reloads.watch_expiry("triton", settings.triton_certificates)
        for file, source in self._security.watched.items():
            telemetry.reloads.watch(file, source)
        self._rates = _shared_rates(name, settings, telemetry)
        self._replies = ReplyWriter(
            Admission(
                settings.max_reply_bytes,
                "bytes of replies",
                queue_s=settings.queue_s,
                share=settings.tenant_share,
            )
        )
        links: list[HandlerInterceptor] = [
            UnreadRequests(),
            *telemetry.server_interceptors(),
            self._guard,
            self._security.authentication,
            *_metering(settings, telemetry, self._rates, largest),
            self._runtime_streams,
            RequestReader(
                settings.max_message_bytes,
                Admission(
                    settings.max_decoded_bytes,
                    "bytes of decoded requests",
                    queue_s=settings.queue_s,
                    share=settings.tenant_share,
                ),
            ),
            AuditedMethods(),
            self._replies,
        ]
        self._server = grpc.aio.server(
            interceptors=[Chain(links)],
            options=[
                # Off, so that a second server on the port fails instead of taking half of the calls, unless
                # it is the one that takes over.
                ("grpc.so_reuseport", int(settings.share_port)),
                ("grpc.max_send_message_length", settings.max_message_bytes),
                ("grpc.max_receive_message_length", largest),
                *settings.connection_age,
                *settings.connection_bounds,
                *keepalive.SERVER,
            ],
        )
        # With its methods registered, grpcio 1.85 waits anew for the next call of each of them at every call.
        self._server.add_registered_method_handlers = _by_name  # type: ignore[method-assign]
        for registration in service.registrations:
            registration.add(registration.servicer, self._server)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._probed = None if settings.health_port is None else health_server(self._health, settings)
        reflection.enable_server_reflection(
            [*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server
        )

    @property
    def address(self) -> str:
        """Return ``host:port`` as bound."""
        return self._on_host(self._port)

    @property
    def in_flight(self) -> int:
        """Return the number of running calls, without health and reflection."""
        return self._guard.in_flight

    async def idle(self) -> None:
        """Wait until no call runs."""
        await self._guard.idle()

    async def start(self) -> None:
        """Bind, answer health, load, serve.

        Raises:
            ServerStartError: the address cannot be bound or the port file not be written.
        """
        shared = self._settings.share_port
        if shared:
            # Callers must not reach a process that is not ready while another one is.
            await self._service.start()
            self._guard.open()
        try:
            self._bind()
            await self._set_health(_NOT_SERVING)
            await self._health.set("live", _SERVING)  # for a supervisor that restarts hanging processes
            await self._server.start()
            if self._probed is not None:
                await self._probed.start()
            self._port_file.enter_context(port_file(self._settings, self.address))
            if not shared:
                await self._service.start()
        except BaseException:
            await self._server.stop(0)
            await self._stop_probed()
            self._port_file.close()
            if shared:
                await self._service.stop()
            raise
        self._started = True
        self._guard.open()
        await self._set_health(_SERVING if self._readiness.ready else _NOT_SERVING)
        self._health_task = asyncio.create_task(self._follow())
        _log.info(
            "serving",
            extra={
                "address": self.address,
                "security": self._security.description,
                "max_message_bytes": self._settings.max_message_bytes,
            },
        )

    async def stop(self, grace_s: float | None = None) -> None:
        """Reject new calls, give running ones ``grace_s`` (default: the settings'), then end them.

        Returns as soon as the last call ends. Another call with less time shortens the wait.
        """
        grace_s = self._settings.grace_s if grace_s is None else grace_s
        self._end_by = min(self._end_by, asyncio.get_running_loop().time() + grace_s)
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        self._hurry.set()
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        if self._health_task is not None:
            self._health_task.cancel()
        await self._health.enter_graceful_shutdown()
        self._guard.close()
        if self._started:
            # gRPC answers calls in its queue with CANCELLED when its server stops, which no channel retries.
            # So let arriving calls get UNAVAILABLE first.
            await asyncio.sleep(min(self._left_s(), _LAME_DUCK_S))
        # Once, and never with less time later: two stops at a time can crash the process (grpcio 1.85). So
        # end calls and streams here instead of by gRPC.
        stopping = asyncio.create_task(self._server.stop(self._left_s() + _LAST_BYTES_S))
        await self._drained()
        self._guard.end()
        self._replies.end()
        self._runtime_streams.end()
        # A call that resists cancellation is abandoned; the process ends.
        await asyncio.wait((stopping,), timeout=self._left_s() + 2 * _LAST_BYTES_S)
        await self._stop_probed()
        if self._started:
            self._started = False
            self._port_file.close()
            await self._service.stop()
            if self._rates is not None:
                await self._rates.close()
            _log.info("stopped")

    async def _stop_probed(self) -> None:
        if self._probed is not None:
            await self._probed.stop(0)

    async def _drained(self) -> None:
        """Wait until no call runs or the grace period, which may be shortened meanwhile, is over."""
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
        """Report the readiness of the service in its health."""
        async with contextlib.aclosing(self._readiness.changes()) as changes:
            async for ready in changes:
                await self._set_health(_SERVING if ready else _NOT_SERVING)

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", *self._names):
            await self._health.set(name, status)

    def _bind(self) -> None:
        self._port = self._bound(self._server, "port", self._security.credentials)
        if self._probed is not None:
            self._bound(self._probed, "health_port", None)

    def _bound(self, server: grpc.aio.Server, field: str, credentials: grpc.ServerCredentials | None) -> int:
        """Bind a server to the port of a setting, and return the port."""
        try:
            # For the reason, which gRPC does not give when binding fails.
            with bound_socket(self._settings, field) as probe:
                if not self._settings.share_port:  # it would receive callers of the other process
                    probe.listen(1)
            address = self._on_host(getattr(self._settings, field))
            if credentials is None:
                return server.add_insecure_port(address)
            return server.add_secure_port(address, credentials)
        except (OSError, RuntimeError) as error:
            raise cannot_listen(self._settings, error, field) from None

    def _on_host(self, port: int) -> str:
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        return f"{host}:{port}"


def _by_name(service_name: str, method_handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
    """Register no methods: the server finds them by name among the generic handlers."""
    del service_name, method_handlers


def _shared_rates(name: str, settings: ServiceSettings, telemetry: Telemetry) -> SharedRates | None:
    """Return what counts the rates of all replicas; None where each process counts for itself."""
    if not settings.limits_store:
        return None
    if settings.limits is None:
        raise ServerStartError("EVENMESH_LIMITS_STORE holds the limits of a file: set EVENMESH_LIMITS too")
    try:
        return SharedRates(
            settings.limits_store, name, required=settings.limits_fail == "closed", meter=telemetry.meter
        )
    except ImportError:
        raise ServerStartError(
            "EVENMESH_LIMITS_STORE needs the package redis: in a checkout, pip install './libs/kit[redis]'"
        ) from None
    except ValueError:  # its text may hold the password
        raise ServerStartError(
            "EVENMESH_LIMITS_STORE: must be a URL, such as redis://:PASSWORD@redis:6379/0"
        ) from None


def _metering(
    settings: ServiceSettings, telemetry: Telemetry, rates: SharedRates | None, largest_request: int
) -> tuple[Metering, ...]:
    """Return the interceptor for the limits of tenants.

    Without authentication one user has the service, and only the limits of a file hold.
    """
    unstated = built_in(largest_request) if settings.knows_callers else TenantLimits()
    if settings.limits is None:
        if not settings.knows_callers:
            return ()
        limits = Limits()
        return (Metering(lambda: limits, telemetry.meter, built_in=unstated),)
    try:
        file = WatchedFiles(
            (settings.limits,), partial(Limits.read, settings.limits), LimitsError, on_change=record_changes
        )
    except LimitsError as error:
        raise ServerStartError(f"EVENMESH_LIMITS: {error}") from None
    telemetry.reloads.watch("limits", file)
    if rates is None:
        _log.info("limits hold for this process alone: n replicas admit n times as much")
    else:
        _log.info("rates of tenants hold for all replicas with this store")
    return (Metering(file.content, telemetry.meter, built_in=unstated, rates=rates),)


def bound_socket(settings: ServiceSettings, field: str = "port") -> socket.socket:
    """Return a socket that is bound to the address of the settings and does not listen yet.

    Args:
        settings: say the address.
        field: the setting that is the port.

    Raises:
        OSError: it cannot be bound, see :func:`cannot_listen`.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        settings.host, getattr(settings, field), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if settings.share_port:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        found.bind(address)
    except BaseException:
        found.close()
        raise
    return found


def cannot_listen(settings: ServiceSettings, error: Exception, field: str = "port") -> ServerStartError:
    """Return what to do about an address that cannot be bound."""
    host, port = settings.host, getattr(settings, field)
    match getattr(error, "errno", None):
        case errno.EADDRINUSE | None:
            why = (
                f"port {port} is taken on {host}: stop what listens there or set {variable(settings, field)}"
            )
        case errno.EACCES:
            why = f"port {port} needs more rights than this user has: set {variable(settings, field)}"
        case _:
            said = getattr(error, "strerror", error)
            why = f"cannot listen on {host}: {said}: set {variable(settings, 'host')}"
    return ServerStartError(why)


@contextlib.contextmanager
def port_file(settings: ServiceSettings, address: str) -> Iterator[None]:
    """Have the address in the port file of the settings, if they name one, while a block runs.

    Raises:
        ServerStartError: the file cannot be written.
    """
    path = settings.port_file
    if path is None:
        yield
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        beside.write_text(address)
        written = beside.stat()
        beside.replace(path)
    except OSError as error:
        name = variable(settings, "port_file")
        raise ServerStartError(f"cannot write {path}: {error.strerror}: set {name}") from None
    try:
        yield
    finally:
        # Keep the file of a successor, which has the same content if the port is shared.
        with contextlib.suppress(OSError):
            if os.path.samestat(path.stat(), written):
                path.unlink()


@contextlib.contextmanager
def asked_to_end(settings: ServiceSettings, hurry: Callable[[], object]) -> Iterator[asyncio.Task[None]]:
    """Yield a task that is done at SIGTERM or SIGINT, or, if the settings say so, when the parent ends.

    Args:
        settings: say whether the parent counts.
        hurry: called at a signal after that.
    """
    ending = asyncio.Event()

    def on_signal() -> None:
        if ending.is_set():
            hurry()
        ending.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    waits: list[asyncio.Task[Any]] = [asyncio.create_task(ending.wait())]
    if settings.exit_with_parent:
        parent.stop_with_parent()
        waits.append(asyncio.create_task(parent.wait_until_gone(settings.parent_pid or os.getppid())))

    async def first() -> None:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        ending.set()

    asked = asyncio.create_task(first())
    try:
        yield asked
    finally:
        for task in (asked, *waits):
            task.cancel()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def run_service(name: str, settings_type: type[S], make: Callable[[S, Telemetry], Service]) -> int:
    """Load a service's settings, make it, and serve until a signal; return the exit code, see :func:`run`."""

    async def main() -> None:
        settings = load(settings_type)
        logs.configure(name, settings)
        telemetry = Telemetry.from_settings(name, settings)
        await serve(name, settings, make(settings, telemetry), telemetry=telemetry)

    return run(main)


async def serve(name: str, settings: ServiceSettings, service: Service, *, telemetry: Telemetry) -> None:
    """Run a service until SIGTERM or SIGINT, or, if the settings say so, until its parent ends.

    The first signal drains within ``grace_s``; a second one ends running calls at once.

    Raises:
        ServerStartError: it cannot start; one line that says what to do.
    """
    hurry = asyncio.Event()
    with asked_to_end(settings, hurry.set) as asked:
        server = MeshServer(name, settings, service, telemetry=telemetry)
        # What a start imports and loads stays: looking for cycles in it takes a fifth of the time, now and
        # later.
        gc.disable()
        starting = asyncio.create_task(server.start())
        giving_back: asyncio.Task[None] | None = None
        try:
            await asyncio.wait((starting, asked), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                gc.freeze()
                gc.enable()
                giving_back = asyncio.create_task(_give_back_memory(server))
                await asked
            else:
                starting.cancel()
                await asyncio.wait((starting,))
        finally:
            gc.enable()
            draining = asyncio.create_task(server.stop())
            hurried = asyncio.create_task(hurry.wait())
            await asyncio.wait((draining, hurried), return_when=asyncio.FIRST_COMPLETED)
            if not draining.done():
                await server.stop(0)
            await draining
            for task in (hurried, *((giving_back,) if giving_back else ())):
                task.cancel()
            telemetry.shutdown()


async def _give_back_memory(server: MeshServer) -> None:
    """Give back memory that the start took, and from time to time what calls took."""
    while True:
        if not server.in_flight:
            await asyncio.to_thread(idle_memory.give_back)
        await asyncio.sleep(GIVE_BACK_S)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run a service's main coroutine on uvloop and return its exit code.

    0 after a clean stop; 2 if it could not start, with the reason on stderr in one line. What the process
    writes from now on is readable by its user alone.
    """
    os.umask(0o077)
    sys.setswitchinterval(_SWITCH_S)
    if sys.platform == "linux":
        # A thread that wakes lets the running one finish its slice: many threads hand over small messages,
        # and preempting each other takes a sixth of the processors. Threads begun later inherit it.
        with contextlib.suppress(OSError):  # a sandbox may forbid it: the service works, with more switches
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
    except (SettingsError, ServerStartError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0
