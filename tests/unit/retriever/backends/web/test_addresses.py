"""Which addresses are public, and that what was checked is what is connected to."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

import httpx
import pytest

from evenmesh_retriever.backends.web.addresses import Address, PrivateAddress, PublicOnly, is_public

PUBLIC = ["93.184.215.14", "8.8.8.8", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"]
PRIVATE = [
    "127.0.0.1",
    "0.0.0.0",  # noqa: S104 - not bound to, refused
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "198.18.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1",
    "fc00::1",
    "fec0::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "2002:7f00:1::",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "64:ff9b::7f00:1",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize("address", PRIVATE)
def test_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


class _Names:
    """A resolver that knows some names, and counts."""

    def __init__(self, **names: Sequence[str]) -> None:
        self._names = {name.replace("_", "."): addresses for name, addresses in names.items()}
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> list[Address]:
        self.asked.append((host, port))
        if host not in self._names:
            raise OSError("no such host")
        return [ip_address(one) for one in self._names[host]]


def _client(names: _Names, requests: list[httpx.Request]) -> httpx.AsyncClient:
    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        if request.url.path == "/inwards":
            return httpx.Response(302, headers={"location": "http://inside.test/secret"})
        if request.url.path == "/moved":
            return httpx.Response(301, headers={"location": "/here"})
        return httpx.Response(200, text="here")

    return httpx.AsyncClient(transport=PublicOnly(httpx.MockTransport(answer), names), follow_redirects=True)


async def test_the_connection_is_made_to_the_address_that_was_checked() -> None:
    names, requests = _Names(example_test=["10.0.0.1", "93.184.215.14"]), list[httpx.Request]()
    async with _client(names, requests) as client:
        response = await client.get("https://example.test:8443/page?a=b")
    (request,) = requests
    assert str(request.url) == "https://93.184.215.14:8443/page?a=b"
    assert request.headers["host"] == "example.test:8443"
    assert request.extensions["sni_hostname"] == "example.test"
    assert names.asked == [("example.test", 8443)]
    assert response.text == "here"


async def test_a_relative_redirect_stays_with_the_name() -> None:
    names, requests = _Names(example_test=["93.184.215.14"]), list[httpx.Request]()
    async with _client(names, requests) as client:
        response = await client.get("https://example.test/moved")
    assert str(response.url) == "https://example.test/here"
    assert [request.headers["host"] for request in requests] == ["example.test"] * 2
    assert [request.extensions["sni_hostname"] for request in requests] == ["example.test"] * 2
    assert names.asked == [("example.test", 443)] * 2


@pytest.mark.parametrize(
    "url",
    [
        "http://inside.test/",
        "http://127.0.0.1/",
        "http://[::1]/",
        "http://[::ffff:169.254.169.254]/latest",
        "http://example.test/inwards",
    ],
)
async def test_nothing_private_is_connected_to_not_even_by_redirect(url: str) -> None:
    names = _Names(inside_test=["192.168.0.7", "fd00::7"], example_test=["93.184.215.14"])
    requests: list[httpx.Request] = []
    async with _client(names, requests) as client:
        with pytest.raises(PrivateAddress):
            await client.get(url)
    assert [request.url.path for request in requests] == (["/inwards"] if "inwards" in url else [])


@pytest.mark.parametrize(
    "url", ["http://0x7f000001/", "http://2130706433/", "http://127.1/", "http://no.test/"]
)
async def test_other_ways_to_write_an_address_are_names(url: str) -> None:
    async with _client(_Names(), []) as client:
        with pytest.raises(httpx.ConnectError, match="no address"):
            await client.get(url)
