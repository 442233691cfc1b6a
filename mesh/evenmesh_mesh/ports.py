"""Choose the ports of the services before anything starts, and keep them while the mesh runs."""

import errno
import socket
import sys
from collections.abc import Iterable
from typing import Final, Self

from evenmesh_mesh.services import Service
from evenmesh_mesh.settings import HOST

_LAST_PORT: Final = 65_535


class PortTakenError(Exception):
    """Raised when a port that the mesh needs is taken.

    Args:
        service: the service that needs it.
        port: the port.
    """

    def __init__(self, service: str, port: int) -> None:
        super().__init__(f"port {port} ({service}) is taken")
        self.service = service
        self.port = port


class Ports:
    """A context manager that reserves a port for every service.

    A reservation is a bound socket that never listens. The service can listen on the same port (both set
    SO_REUSEADDR or SO_REUSEPORT), the system gives it to no other process, and it survives a restart of the
    service.

    Args:
        services: the services that need a port.
        base: the orchestrator's; the others follow by their offsets. 0 lets the system choose them all.

    Raises:
        PortTakenError: on entry, if a process listens on one of them.
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
            # On other systems a bound socket would block the service, too: there the ports are only checked.
            self._release()
        return self

    def __exit__(self, *exc: object) -> None:
        self._release()

    def _release(self) -> None:
        for one in self._sockets.values():
            one.close()
        self._sockets.clear()


def is_free(port: int) -> bool:
    """Return whether a service could listen on the port now."""
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
