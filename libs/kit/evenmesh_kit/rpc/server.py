"""The server of every service: bind, health, reflection, start, serve, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, Self

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from evenmesh.wire import keepalive
from evenmesh.wire.file_watch import WatchedFiles
from evenmesh.wire.methods import largest_request_bytes
from evenmesh_kit.admission.limits import Limits, LimitsError, TenantLimits, built_in, record_changes
from evenmesh_kit.admission.metering import Metering
from evenmesh_kit.admission.metrics import AdmissionMetrics
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.admission.shared_rates import SharedRates
from evenmesh_kit.process.start import ServerStartError, cannot_listen, check_addresses, port_file
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
from evenmesh_kit.settings import ServiceSettings
from evenmesh_kit.telemetry.setup import Telemetry

_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING
_LAME_DUCK_S: Final = 0.05
_LAST_BYTES_S: Final = 0.1
_log = logging.getLogger("evenmesh.kit.server")


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
    ``start`` returns. Use it as an async context manager, or run a process with
    :func:`evenmesh_kit.process.serving.serve`. With a ``readiness``, health is NOT_SERVING also while the
    service is not ready; calls are still accepted.
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
        replies, requests = (
            Admission(most, unit, queue_s=settings.queue_s, share=settings.tenant_share)
            for most, unit in (
                (settings.max_reply_bytes, "bytes of replies"),
                (settings.max_decoded_bytes, "bytes of decoded requests"),
            )
        )
        AdmissionMetrics(telemetry, replies, requests)
        self._replies = ReplyWriter(replies)
        links: list[HandlerInterceptor] = [
            UnreadRequests(),
            *telemetry.server_interceptors(),
            self._guard,
            self._security.authentication,
            *_metering(settings, telemetry, self._rates, largest),
            self._runtime_streams,
            RequestReader(settings.max_message_bytes, requests),
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
            check_addresses(self._settings, field)
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
