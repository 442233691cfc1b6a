"""Fetch a small document from an address within a time that its server cannot extend."""

from __future__ import annotations

import http.client
import socket
import threading
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

_MOST_BYTES: Final = 2**20


def fetch(address: str, seconds: float) -> bytes:
    """Return what is at an address, through the proxy of the environment; follow no redirect.

    A timeout of a socket bounds each wait for a byte. So a server that sends one now and then could keep the
    caller for ever: when the time is over, the connection is cut.

    Args:
        address: ``https://`` or ``http://``.
        seconds: time for all of it after the connection is made, and for the connection.

    Raises:
        OSError: it cannot be fetched, or not within the time.
        http.client.HTTPException: the reply is no HTTP, or has not ended.
        ValueError: it is larger than 1 MiB.
    """
    request = urllib.request.Request(address, headers={"accept": "application/json"})  # noqa: S310 - of settings
    connections = _Connections()
    timer = threading.Timer(seconds, connections.cut)
    timer.daemon = True
    timer.start()
    try:
        with urllib.request.build_opener(_NoRedirect(), connections).open(request, timeout=seconds) as reply:
            body: bytes = reply.read(_MOST_BYTES + 1)
    except (OSError, http.client.HTTPException, AttributeError):
        connections.check(seconds)
        raise
    finally:
        timer.cancel()
    connections.check(seconds)  # a reply without a length ends where its connection does
    if len(body) > _MOST_BYTES:
        raise ValueError(f"the reply is larger than {_MOST_BYTES:,} bytes")
    return body


class _Connections(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens addresses over connections that another thread can cut."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._over = False

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open an ``http://`` address."""
        return self.do_open(self._made(http.client.HTTPConnection), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open an ``https://`` address."""
        return self.do_open(self._made(http.client.HTTPSConnection), req)

    def cut(self) -> None:
        """End every connection, and those that come."""
        with self._lock:
            self._over = True
            for one in self._sockets:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def check(self, seconds: float) -> None:
        """Raise TimeoutError if the connections were cut."""
        if self._over:
            raise TimeoutError(f"no whole reply within {seconds:g} s")

    def _made(self, kind: type[http.client.HTTPConnection]) -> Callable[..., Any]:
        def made(*args: Any, **options: Any) -> http.client.HTTPConnection:
            connection = kind(*args, **options)
            connect = connection.connect

            def connecting() -> None:
                connect()
                with self._lock:
                    if self._over:
                        raise TimeoutError
                    self._sockets.append(connection.sock)

            connection.connect = connecting  # type: ignore[method-assign]
            return connection

        return made


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows none: it would lead to an address that nobody has set."""

    def redirect_request(self, *_: Any) -> None:
        """Return no request."""
