"""The Triton servers that a target resolves to: one connection each, found and left as names change."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from evenmesh_generator.backends.triton.client import TritonClient
from evenmesh_kit.compute.tenant_places import TenantPlaces

MOST_SERVERS: Final = 64
"""Most servers that one generator calls; it monitors each of them."""
_LOOKUP_S: Final = 5.0
_LEAVE_S: Final = 600.0
"""How long a server that no name lists any more is monitored while it still answers. Seconds."""
_log = logging.getLogger("evenmesh.generator.triton")


async def look_up(host: str, port: int) -> list[str]:
    """Return the addresses of a host as ``ip:port``, sorted: the IPv4 ones, or else the IPv6 ones.

    A pod of a dual-stack cluster has one of each, and would count twice.

    Raises:
        OSError: the name cannot be resolved.
        TimeoutError: not in time.
    """
    async with asyncio.timeout(_LOOKUP_S):
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    short = {one[4][0] for one in found if one[0] is socket.AF_INET}
    long = {one[4][0] for one in found if one[0] is socket.AF_INET6}
    return sorted(f"{one}:{port}" for one in short) or sorted(f"[{one}]:{port}" for one in long)


class TritonServer:
    """One server.

    Attributes:
        client: the connection to it.
        places: those for running requests there, shared by all models.
        listed: whether a name still resolves to it.
        used: number of the last request that it was chosen for, counted over all servers; 0 for none.
    """

    def __init__(self, client: TritonClient, places: TenantPlaces) -> None:
        self.client = client
        self.places = places
        self.listed = True
        self.used = 0
        self.unlisted_at = 0.0

    @property
    def load(self) -> int:
        """Return the requests that run there or wait for that."""
        return self.places.held + self.places.waiting


class TritonServers:
    """The servers of one generator. For one event loop; close it.

    Attributes:
        on_join: awaited with a server that was found.
        on_leave: awaited with one that is forgotten, before its connection is closed.
        in_use: returns whether a server answers or still computes something.

    Args:
        targets: ``host:port`` each; a name stands for all addresses that it resolves to.
        connect: opens the connection to an address, given the host of its target.
        places: makes the places of one server.
        interval_s: time between two looks at the names. Seconds, (0, inf).
        find: resolves a host and port; raises OSError or TimeoutError.
    """

    def __init__(
        self,
        targets: Sequence[str],
        connect: Callable[[str, str], TritonClient],
        places: Callable[[], TenantPlaces],
        *,
        interval_s: float,
        find: Callable[[str, int], Awaitable[list[str]]] = look_up,
    ) -> None:
        self._targets = [
            (host.strip("[]"), int(port)) for host, _, port in (t.rpartition(":") for t in targets)
        ]
        self._connect = connect
        self._places = places
        self._interval_s = interval_s
        self._find = find
        # What each target resolved to when it last did.
        self._found: dict[tuple[str, int], list[str]] = {}
        self._by_address: dict[str, TritonServer] = {}
        self._looking: asyncio.Task[None] | None = None
        self.on_join: Callable[[TritonServer], Awaitable[None]] = _ignore
        self.on_leave: Callable[[TritonServer], Awaitable[None]] = _ignore
        self.in_use: Callable[[TritonServer], bool] = lambda _: False

    @property
    def all(self) -> list[TritonServer]:
        """Return every server that has a connection."""
        return list(self._by_address.values())

    @property
    def held(self) -> int:
        """Return the requests at all servers; may be read from any thread."""
        return sum(one.places.held for one in self.all)

    @property
    def waiting(self) -> int:
        """Return the requests that wait for a place at one; may be read from any thread."""
        return sum(one.places.waiting for one in self.all)

    def watch(self) -> None:
        """Begin to look names up at intervals; addresses alone never change."""
        if not all(map(is_address, (host for host, _ in self._targets))):
            self._looking = asyncio.create_task(self._look())

    async def close(self) -> None:
        """Stop looking, and close every connection."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait((self._looking,))
        for server in self.all:
            await server.client.close()

    async def refresh(self) -> None:
        """Look every name up once; connect to new addresses and forget those that have gone.

        A name that cannot be resolved keeps the addresses that it had: that servers are gone shows by
        itself, and a name server that fails must not take them away.
        """
        hosts: dict[str, str] = {}
        for host, port in self._targets:
            try:
                found = await self._find(host, port)
            except (OSError, TimeoutError) as error:
                level = logging.WARNING if (host, port) in self._found else logging.DEBUG
                _log.log(level, "a Triton target cannot be resolved", extra={"why": type(error).__name__})
            else:
                if found:
                    self._found[host, port] = found
            hosts |= dict.fromkeys(self._found.get((host, port), ()), host)
        listed = dict(list(hosts.items())[:MOST_SERVERS])
        if len(hosts) > MOST_SERVERS:
            _log.warning(
                "more Triton servers than are called", extra={"found": len(hosts), "called": MOST_SERVERS}
            )
        for address, host in listed.items():
            server = self._by_address.get(address)
            if server is None:
                server = self._by_address[address] = TritonServer(
                    self._connect(address, host), self._places()
                )
                _log.info("triton server joins", extra={"server": address})
                await self.on_join(server)
            server.listed = True
        for address, server in list(self._by_address.items()):
            if address not in listed:
                await self._consider_leaving(address, server)

    async def _consider_leaving(self, address: str, server: TritonServer) -> None:
        """Forget a server that no name lists, once it answers nothing; until then it may be back."""
        now = time.monotonic()
        if server.listed:
            server.listed, server.unlisted_at = False, now
        if server.load or (self.in_use(server) and now - server.unlisted_at < _LEAVE_S):
            return
        del self._by_address[address]
        _log.info("triton server leaves", extra={"server": address})
        await self.on_leave(server)
        await server.client.close()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.refresh()
            except Exception:  # noqa: BLE001 - a later look may work
                _log.exception("Triton servers cannot be looked up")


def is_address(host: str) -> bool:
    """Return whether a host is an IP address, and not a name of some."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def _ignore(server: TritonServer) -> None:
    """Do nothing about a server."""
