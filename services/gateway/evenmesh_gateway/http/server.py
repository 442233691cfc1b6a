"""The HTTP server of the gateway: uvicorn with bounds, renewed certificates, and a drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import ssl
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import h11
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from evenmesh.wire.certificates import CertificateError, Certificates, Material
from evenmesh.wire.security import SYSTEM
from evenmesh_gateway.http.web import CROWDED, PROBES
from evenmesh_gateway.settings import GatewaySettings
from evenmesh_kit.process.serving import asked_to_end
from evenmesh_kit.process.start import ServerStartError, bound_sockets, cannot_listen, port_file
from evenmesh_kit.telemetry.setup import Telemetry

_KEEP_ALIVE_S: Final = 75
"""Longest rest of a connection between two requests; above the 60 s of common proxies. Seconds."""
_TAKEN_S: float = 300.0
"""Longest time in which a client takes nothing of what it was sent. Then the system ends its connection,
which otherwise lasts for ever, with all that waits there. Seconds."""
_CERTIFICATE_CHECK_S: Final = 5.0
_EVENTS: Final = 64
"""Most events of a connection that are read at a time, which takes about two milliseconds. A body may come in
chunks of one byte, and a quarter of a megabyte of them is an event of its own each."""
_log = logging.getLogger("evenmesh.gateway.server")


class _Server(uvicorn.Server):
    """uvicorn's server, whose signals are those of :func:`serve`, with a time for handshakes.

    Args:
        config: of uvicorn.
        handshake_s: longest handshake of TLS, which counts as no connection yet. Seconds.
    """

    def __init__(self, config: uvicorn.Config, handshake_s: float) -> None:
        super().__init__(config)
        self.begun = asyncio.Event()
        self._handshake_s = handshake_s

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])  # its own listeners let a handshake last a minute
        config = self.config
        protocol: Any = config.http_protocol_class
        make = partial(
            protocol,
            config=config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        for listener in sockets or ():
            server = await asyncio.get_running_loop().create_server(
                make,
                sock=listener,
                ssl=config.ssl,
                backlog=config.backlog,
                ssl_handshake_timeout=None if config.ssl is None else self._handshake_s,
            )
            self.servers.append(server)
        self.begun.set()


class _Events(h11.Connection):
    """The events of a connection, of which only so many are there at a time.

    Attributes:
        left: how many are there; then more data seem to be needed.
    """

    left = 0

    def next_event(self) -> Any:
        if not self.left:
            return h11.NEED_DATA
        self.left -= 1
        return super().next_event()


class _Flow(FlowControl):
    """Reading of a connection, which both its request and its turn may pause."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._held = self._paused = False

    def pause_reading(self) -> None:
        self._paused = True
        super().pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        if not self._held:
            super().resume_reading()

    def hold(self) -> None:
        """Read nothing until it is released."""
        self._held = True
        super().pause_reading()

    def release(self) -> None:
        """Read again, unless the request has enough."""
        self._held = False
        if not self._paused:
            super().resume_reading()


class _Turns:
    """Turns of connections that have sent more than is read at a time, one in each pass of the event loop."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def add(self, go_on: Callable[[], None]) -> None:
        """Call ``go_on`` when it is its turn."""
        self._waiting.append(go_on)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        go_on = self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        go_on()


def _protocol(head_s: float) -> type[H11Protocol]:
    """Return uvicorn's protocol, with turns and a time for the head of a request, of which it knows none."""
    turns = _Turns()

    class Protocol(H11Protocol):
        """HTTP/1.1 on one connection, closed where a request does not begin in time.

        The time runs too while a body goes on whose request has been answered: nothing else would end it.
        """

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.conn: _Events = _Events(h11.SERVER, self.config.h11_max_incomplete_event_size or 16_384)
            self._behind = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.flow: _Flow = _Flow(transport)
            self._waiting: asyncio.TimerHandle | None = self.loop.call_later(head_s, self._close)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._time_head()

        def handle_events(self) -> None:
            self.conn.left = _EVENTS
            super().handle_events()
            if self.conn.left:
                self.flow.release()
            elif not self._behind:
                self._behind = True
                self.flow.hold()
                turns.add(self._go_on)

        def connection_lost(self, exc: Exception | None) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
            super().connection_lost(exc)

        def _go_on(self) -> None:
            self._behind = False
            if not self.transport.is_closing():
                self.handle_events()
                self._time_head()

        def _time_head(self) -> None:
            answered = self.cycle is None or self.cycle.response_complete
            heads = answered and self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
            if not heads and self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None
            elif heads and self._waiting is None:
                self._waiting = self.loop.call_later(head_s, self._close)

        def _close(self) -> None:
            self._waiting = None
            self.transport.close()

    return Protocol


class HttpServer:
    """The server of one process.

    Args:
        app: what answers.
        settings: where, with which certificate, and within which bounds.

        telemetry: reports when the certificate expires.

    Attributes:
        address: ``host:port`` as bound, the first; empty before :meth:`start`.

    Raises:
        ServerStartError: a file of the certificate cannot be used.
    """

    def __init__(self, app: ASGIApp, settings: GatewaySettings, telemetry: Telemetry | None = None) -> None:
        self.address = ""
        self._settings = settings
        self._certificates = _certificates(settings)
        if self._certificates is not None and telemetry is not None:
            telemetry.reloads.watch_certificates("server", self._certificates)
        required = settings.tls_clients == "required"
        self._config = uvicorn.Config(
            self._bounded(app),
            http=_protocol(settings.head_s),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=math.ceil(settings.grace_s),
            h11_max_incomplete_event_size=settings.max_header_bytes,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
            ssl_ca_certs=str(settings.tls_ca) if required else None,
            ssl_cert_reqs=ssl.CERT_REQUIRED if required else ssl.CERT_NONE,
        )
        self._config.load()
        self._server = _Server(self._config, settings.head_s)
        self._running: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._stack = contextlib.ExitStack()

    def _bounded(self, app: ASGIApp) -> ASGIApp:
        """Return what refuses requests while too many connections are open, and ends theirs.

        uvicorn's own bound would refuse probes, too, and Kubernetes end a process that has much to do.
        """
        most = self._settings.max_connections

        async def bounded(scope: Scope, receive: Receive, send: Send) -> None:
            async def closing(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
                await send(message)

            state = self._server.server_state
            crowded = len(state.connections) >= most or len(state.tasks) > most
            if not crowded or scope["path"] in PROBES:
                await app(scope, receive, send)
            else:
                await app({**scope, CROWDED: True}, receive, closing)

        return bounded

    async def start(self) -> None:
        """Listen and serve.

        Raises:
            ServerStartError: the address cannot be bound or the port file not be written.
        """
        listeners = _listeners(self._settings)
        self.address = _address(listeners[0])
        self._running = asyncio.create_task(self._server.serve(listeners))
        self._renewing = asyncio.create_task(_renew(self._config.ssl, self._settings, self._certificates))
        await self._server.begun.wait()
        self._stack.enter_context(port_file(self._settings, self.address))
        security = "TLS" if self._config.is_ssl else "plain text"
        _log.info("serving", extra={"address": self.address, "security": security})

    async def stop(self) -> None:
        """Accept nothing new, let running requests end within ``grace_s``, then end them."""
        self._stack.close()
        self._server.should_exit = True
        if self._running is not None:
            await self._running
        if self._renewing is not None:
            self._renewing.cancel()

    def hurry(self) -> None:
        """Wait no longer for running requests."""
        self._server.force_exit = True


async def serve(
    app: ASGIApp, settings: GatewaySettings, drain: Callable[[], None], telemetry: Telemetry
) -> None:
    """Serve until SIGTERM or SIGINT, or, if the settings say so, until the parent ends.

    The first signal drains, which is to say no to who asks whether it is ready; a second one ends running
    requests at once.

    Raises:
        ServerStartError: it cannot start; one line that says what to do.
    """
    server = HttpServer(app, settings, telemetry)
    with asked_to_end(settings, server.hurry) as asked:
        try:
            await server.start()
            await asked
            drain()
        finally:
            await server.stop()
    _log.info("stopped")


async def _renew(
    context: ssl.SSLContext | None, settings: GatewaySettings, certificates: Certificates | None
) -> None:
    """Let new connections have the certificate, and the authorities of clients, that the files have now."""
    if context is None or certificates is None:
        return
    given: Material = certificates.material
    while True:
        await asyncio.sleep(_CERTIFICATE_CHECK_S)
        material = certificates.material
        if material is given:
            continue
        try:
            _use(context, material, trusts=settings.tls_clients == "required")
        except (ssl.SSLError, OSError) as error:  # read while files were replaced, or no file may be opened
            _log.warning("the new certificate cannot be used yet: %s", error)
            continue
        given = material
        _log.info("new certificate")


def _use(context: ssl.SSLContext, material: Material, *, trusts: bool) -> None:
    """Have a context use what was read, whatever the files have become since.

    Raises:
        ssl.SSLError: certificate and key do not belong together; the context is as it was.
        OSError: they cannot be written to where the context reads them.
    """
    with tempfile.NamedTemporaryFile() as file:  # of this user alone
        file.write(b"\n".join(part for part in (material.chain, material.key) if part is not None))
        file.flush()
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file.name)
        context.load_cert_chain(file.name)
    if trusts and material.authorities is not None:
        context.load_verify_locations(cadata=material.authorities.decode())


def _certificates(settings: GatewaySettings) -> Certificates | None:
    if settings.tls_cert is None:
        return None
    ca = settings.tls_ca
    try:
        return Certificates(
            settings.tls_cert, settings.tls_key, None if ca is None or str(ca) == SYSTEM else ca
        )
    except CertificateError as error:
        raise ServerStartError(f"EVENMESH_TLS_CERT, _KEY, _CA: {error}") from None


def _listeners(settings: GatewaySettings) -> list[socket.socket]:
    """Return the sockets to listen on, one for each address of the host."""
    with contextlib.ExitStack() as stack:
        try:
            found = [stack.enter_context(one) for one in bound_sockets(settings)]
            for one in found:
                if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; connections inherit it
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * _TAKEN_S))
                one.listen(settings.max_connections)
        except OSError as error:
            raise cannot_listen(settings, error) from None
        stack.pop_all()
    return found


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
