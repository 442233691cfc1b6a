"""Bind the address of a service and write its port file, or state what to do."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Final

from evenmesh_kit.settings import ServiceSettings, variable

_TRIES: Final = 20
_Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]


class ServerStartError(Exception):
    """Raised when a service cannot start; one line that says what to do."""


def bound_sockets(settings: ServiceSettings, field: str = "port") -> Sequence[socket.socket]:
    """Return sockets that do not listen yet, bound to every address of the host of the settings, at one port.

    Callers of a name that has several addresses try any of them.

    Args:
        settings: say the host and the port.
        field: the setting that is the port.

    Raises:
        OSError: one is taken, or none can be bound; see :func:`cannot_listen`.
    """
    tries = 1 if getattr(settings, field) else _TRIES
    while True:
        tries -= 1
        try:
            return _all_bound(settings, field)
        except OSError as error:
            # The port that the system chose at one address may be taken at the next one.
            if error.errno != errno.EADDRINUSE or not tries:
                raise


def check_addresses(settings: ServiceSettings, field: str) -> None:
    """Bind every address of the host of the settings for a moment, as a name may have several.

    gRPC listens on those that it can bind, and does not give the reason where it can bind none. Callers that
    connect to another of them would reach another program.

    Raises:
        OSError: one is taken, or none can be bound; see :func:`cannot_listen`.
    """
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(one) for one in bound_sockets(settings, field)]
        if not settings.share_port:  # it would receive callers of the other process
            for probe in probes:
                probe.listen(1)


def _all_bound(settings: ServiceSettings, field: str) -> Sequence[socket.socket]:
    port = getattr(settings, field)
    found: list[socket.socket] = []
    problem: OSError | None = None
    with contextlib.ExitStack() as stack:
        for family, kind, protocol, name, address in _addresses(settings, field):
            at = (family, kind, protocol, name, (address[0], port, *address[2:]))
            try:
                found.append(stack.enter_context(_bound(settings, at)))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise
                problem = error  # such as a family that this machine does not have
            else:
                port = found[-1].getsockname()[1]
        if problem is not None and not found:
            raise problem
        stack.pop_all()
    return found


def _addresses(settings: ServiceSettings, field: str) -> Sequence[_Address]:
    """Return the addresses to listen on, first those that this machine's resolver knows.

    gRPC's own resolver, also that of callers, answers ``localhost`` with both families, whatever this
    machine's does.
    """
    hosts = ("localhost", "127.0.0.1", "::1") if settings.host == "localhost" else (settings.host,)
    port = getattr(settings, field)
    found = (
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE) for host in hosts
    )
    return list(dict.fromkeys(address for addresses in found for address in addresses))


def _bound(settings: ServiceSettings, at: _Address) -> socket.socket:
    family, kind, protocol, _, address = at
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
