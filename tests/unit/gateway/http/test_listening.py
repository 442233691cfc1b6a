"""The gateway listens on every address of its host."""

from __future__ import annotations

import socket

import httpx
import pytest

from evenmesh_kit.process.start import ServerStartError
from tests.unit.gateway.conftest import Open


@pytest.fixture
def ipv6() -> None:
    """Skip the test on a machine without IPv6."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error.strerror}")


@pytest.mark.usefixtures("ipv6")
async def test_localhost_is_reached_at_both_its_addresses(open_gateway: Open) -> None:
    port = (await open_gateway(host="localhost")).base_url.port
    async with httpx.AsyncClient() as client:
        for host in ("127.0.0.1", "[::1]"):
            assert (await client.get(f"http://{host}:{port}/healthz", timeout=60)).status_code == 200


@pytest.mark.usefixtures("ipv6")
async def test_a_port_that_is_taken_on_one_address_of_localhost_is_reported(open_gateway: Open) -> None:
    with socket.socket(socket.AF_INET6) as other:
        other.bind(("::1", 0))
        other.listen()
        with pytest.raises(ServerStartError, match="is taken on localhost"):
            await open_gateway(host="localhost", port=other.getsockname()[1])


@pytest.mark.usefixtures("ipv6")
@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_an_ipv6_address_may_have_brackets(open_gateway: Open, host: str) -> None:
    client = await open_gateway(host=host)
    assert client.base_url.host == "::1"
    assert (await client.get("/healthz")).status_code == 200
