"""Keep page fetches away from addresses that are not public.

A result of a search is a stranger's word: without this, a page could send us to the services next door, or to
a cloud's metadata. A name is looked up here and the connection made to the very address that was checked, so
that it cannot mean another one by the time it is used; every redirect comes through here again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from typing import TypeAlias

import httpx

from evenmesh.public_addresses import Address, is_public

Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[Address]]]


class PrivateAddress(httpx.RequestError):
    """A page is at an address that is not public."""


async def resolve(host: str, port: int) -> Sequence[Address]:
    """Return the addresses of a host. Raises OSError when there is none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]


class PublicOnly(httpx.AsyncBaseTransport):
    """A transport that connects to public addresses only.

    Args:
        inner: makes the connections. It must not keep them: one made for a name may not serve another name of
            the same address.
        resolver: looks names up.
    """

    def __init__(self, inner: httpx.AsyncBaseTransport, resolver: Resolver = resolve) -> None:
        self._inner = inner
        self._resolve = resolver

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request to a public address of its host.

        Raises:
            PrivateAddress: none of its addresses is public.
            httpx.ConnectError: it has no address.
        """
        host = request.url.host
        address = await self._public(request, host)
        # A request of its own: relative redirects follow from the name in the first. The Host header has it
        # already, and certificates are checked for it, not for the address.
        return await self._inner.handle_async_request(
            httpx.Request(
                request.method,
                request.url.copy_with(host=str(address)),
                headers=request.headers,
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": host},
            )
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()

    async def _public(self, request: httpx.Request, host: str) -> Address:
        port = request.url.port or (443 if request.url.scheme == "https" else 80)
        try:
            addresses: Sequence[Address] = [ip_address(host)]
        except ValueError:
            try:
                addresses = await self._resolve(host, port)
            except (OSError, UnicodeError) as error:
                raise httpx.ConnectError("the host has no address", request=request) from error
        for address in addresses:
            if is_public(address):
                return address
        raise PrivateAddress("the host is at no public address", request=request)
