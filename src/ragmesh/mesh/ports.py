"""Ports of the services, chosen before anything starts and kept while the mesh runs."""

import errno
import socket
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self

from ragmesh.mesh.services import Service
from ragmesh.mesh.settings import HOST

_LAST_PORT: Final = 65_535


class PortTakenError(Exception):
    """A port the mesh needs is taken.

    Args:
        service: who needs it.
        port: which.
    """

    def __init__(self, service: str, port: int) -> None:
        super().__init__(f"port {port} ({service}) is taken")
        self.service = service
        self.port = port


class Ports:
    """The port of every service; a context manager that reserves them.

    A reservation is a socket that is bound and never listens: the service can listen on the port beside it
    (both allow the address to be used again), nobody else is given it, and it stays the service's own over a
    restart.

    Args:
        services: who needs one.
        base: the orchestrator's; the others follow by their offsets. 0 lets the system choose them all.

    Raises:
        PortTakenError: on entry, if somebody listens on one of them.
    """

    def __init__(self, services: Iterable[Service], base: int) -> None:
        self._wanted = {service.name: base + service.offset if base else 0 for service in services}
        self._sockets: dict[str, socket.socket] = {}
        self.by_service: dict[str, int] = {}

    def __enter__(self) -> Self:
        try:
            for name, port in self._wanted.items():
                self._sockets[name] = _bound(name, port)
                self.by_service[name] = self._sockets[name].getsockname()[1]
        except BaseException:
            self._release()
            raise
        if sys.platform != "linux":
            # Elsewhere a bound socket keeps the service out too: there the ports are only known to be free.
            self._release()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._release()

    def _release(self) -> None:
        for one in self._sockets.values():
            one.close()
        self._sockets.clear()


def is_free(port: int) -> bool:
    """Whether a service could listen on the port now."""
    try:
        _bound("", port).close()
    except PortTakenError:
        return False
    return True


def _bound(name: str, port: int) -> socket.socket:
    if port > _LAST_PORT:
        raise PortTakenError(name, port)
    one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((HOST, port))
    except OSError as exc:
        one.close()
        if exc.errno in {errno.EADDRINUSE, errno.EACCES}:
            raise PortTakenError(name, port) from exc
        raise
    return one
