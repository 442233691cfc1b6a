"""Bind the address of a service and write its port file, or state what to do."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from evenmesh_kit.settings import ServiceSettings, variable

_Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]


class ServerStartError(Exception):
    """Raised when a service cannot start; one line that says what to do."""


def bound_socket(settings: ServiceSettings, field: str = "port") -> socket.socket:
    """Return a socket that is bound to the address of the settings and does not listen yet.

    Args:
        settings: say the address.
        field: the setting that is the port.

    Raises:
        OSError: it cannot be bound, see :func:`cannot_listen`.
    """
    return _bound(settings, _addresses(settings, field)[0])


def check_addresses(settings: ServiceSettings, field: str) -> None:
    """Bind every address of the host of the settings for a moment, as a name may have several.

    gRPC listens on those that it can bind, and does not give the reason where it can bind none. Callers that
    connect to another of them would reach another program.

    Raises:
        OSError: one is taken, or none can be bound; see :func:`cannot_listen`.
    """
    problem: OSError | None = None
    free = False
    for address in _addresses(settings, field):
        try:
            with _bound(settings, address) as probe:
                if not settings.share_port:  # it would receive callers of the other process
                    probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
            problem = error  # such as a family that this machine does not have
        else:
            free = True
    if problem is not None and not free:
        raise problem


def _addresses(settings: ServiceSettings, field: str) -> Sequence[_Address]:
    """Return the addresses that gRPC listens on, first those that this machine's resolver knows.

    gRPC's own resolver answers ``localhost`` with both families, whatever this machine's does.
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
