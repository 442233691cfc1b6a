"""Choose one of several servers that answer alike: a healthy one with the fewest running requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from evenmesh.wire.errors import Overloaded
from evenmesh_kit.remote.errors import ServerUnavailable
from evenmesh_kit.remote.options import server_name

_log = logging.getLogger("evenmesh.kit.remote")


class Endpoint:
    """One server.

    Attributes:
        url: its base URL, without a slash at the end.
        name: its ``host:port``.
        outstanding: requests that it has not answered yet.
        used: number of the last request that it was chosen for, counted over all endpoints; 0 for none.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.name = server_name(url)
        self.outstanding = 0
        self.used = 0
        self._rests_until: float | None = None

    def rests(self, now: float) -> bool:
        """Return whether it failed, and its time of rest is not over."""
        return self._rests_until is not None and now < self._rests_until

    def on_trial(self, now: float) -> bool:
        """Return whether it failed, has rested, and one request is about to show whether it is back."""
        return self._rests_until is not None and now >= self._rests_until and self.outstanding > 0

    @property
    def address(self) -> dict[str, str | int]:
        """Return its host and port, as attributes of spans."""
        host, _, port = self.name.rpartition(":")
        return {"server.address": host.strip("[]"), "server.port": int(port)}

    @property
    def healthy(self) -> bool:
        """Return whether its last request was answered, or it had none."""
        return self._rests_until is None

    def rest(self, until: float, why: str) -> None:
        """Leave it alone until ``until``, in monotonic seconds."""
        if self._rests_until is None:
            _log.warning("model server failed", extra={"server": self.name, "why": why})
        self._rests_until = until

    def answered(self) -> None:
        """Record that it answers."""
        if self._rests_until is not None:
            _log.info("model server is back", extra={"server": self.name})
        self._rests_until = None


class EndpointPool:
    """The servers of one client. For one event loop.

    A server that failed rests for ``rest_s``; then one request at a time tries it until it answers. One of
    several that has too many requests rests as long as it asks for, at most ``rest_s``. Where all rest, the
    one whose rest ends first is used: a lone server is always tried.

    Args:
        urls: base URLs.
        rest_s: seconds, [0, inf).
    """

    def __init__(self, urls: Sequence[str], rest_s: float) -> None:
        self.endpoints = tuple(map(Endpoint, urls))
        self._rest_s = rest_s
        self._uses = 0

    def choose(self, *, other_than: Endpoint | None = None) -> Endpoint:
        """Return the server for the next request; another than ``other_than`` if there is one."""
        now = time.monotonic()
        candidates = [one for one in self.endpoints if one is not other_than] or list(self.endpoints)

        def order(one: Endpoint) -> tuple[bool, float, int, int]:
            away = one.rests(now) or one.on_trial(now)
            # Of equals, the one unused for longest.
            return away, one._rests_until or 0.0 if away else 0.0, one.outstanding, one.used

        return min(candidates, key=order)

    def rest(self, endpoint: Endpoint, why: str, rest_s: float | None = None) -> None:
        """Leave a server alone for ``rest_s`` seconds; None: the time of rest of one that failed."""
        endpoint.rest(time.monotonic() + (self._rest_s if rest_s is None else rest_s), why)

    def overloaded(self, endpoint: Endpoint, error: Overloaded) -> None:
        """Leave a server alone for as long as it asks for, unless it is the only one.

        It refuses at once: with the fewest running requests it would get all that come.
        """
        if len(self.endpoints) > 1:
            self.rest(endpoint, error.message, min(error.retry_after_s or 0.0, self._rest_s))

    @contextmanager
    def using(self, endpoint: Endpoint) -> Iterator[None]:
        """Count a request, and record whether it shows that the server is there.

        Every answer of the server itself does, also an error; a caller that leaves shows nothing.
        """
        self._uses += 1
        endpoint.used = self._uses
        endpoint.outstanding += 1
        try:
            yield
        except ServerUnavailable as error:
            if error.rests:
                self.rest(endpoint, error.message)
            else:
                endpoint.answered()
            raise
        finally:
            endpoint.outstanding -= 1
