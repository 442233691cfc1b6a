"""Certificates of the gateway that are replaced while it serves."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from starlette.types import Receive, Scope, Send

from evenmesh.wire.certificates import Certificates, Material
from evenmesh_gateway.http import server
from evenmesh_gateway.settings import GatewaySettings
from tests.support.in_memory_telemetry import InMemoryTelemetry

NAME = "localhost"


def write(folder: Path, authority: trustme.CA) -> dict[str, Path]:
    """Puts a certificate, its key and its authority there, as settings name them."""
    issued = authority.issue_cert(NAME)
    contents = {
        "tls_cert": b"".join(part.bytes() for part in issued.cert_chain_pems),
        "tls_key": issued.private_key_pem.bytes(),
        "tls_ca": authority.cert_pem.bytes(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {name: folder / name for name in contents}


async def says_nothing(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("nobody asks")


@asynccontextmanager
async def serving(monkeypatch: pytest.MonkeyPatch, **given: Any) -> AsyncIterator[tuple[str, int]]:
    monkeypatch.setattr(server, "_CERTIFICATE_CHECK_S", 0.02)
    http = server.HttpServer(says_nothing, GatewaySettings(port=0, grace_s=0, **given))
    await http.start()
    host, port = http.address.rsplit(":", 1)
    try:
        yield host, int(port)
    finally:
        await http.stop()


async def trusted(address: tuple[str, int], authority: trustme.CA, shown: trustme.CA | None = None) -> bool:
    """Returns whether a client that trusts one authority gets in; it may show a certificate of another one."""
    context = ssl.create_default_context()
    context.load_verify_locations(cadata=authority.cert_pem.bytes().decode())
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # whose handshake tells the client of a refusal
    if shown is not None:
        shown.issue_cert("client").configure_cert(context)
    try:
        _, writer = await asyncio.open_connection(*address, ssl=context, server_hostname=NAME)
    except (ssl.SSLError, ConnectionError):
        return False
    writer.close()
    return True


async def until_trusted(*arguments: Any) -> None:
    async with asyncio.timeout(30):
        while not await trusted(*arguments):
            await asyncio.sleep(0.02)


async def test_a_handshake_that_does_not_end_closes_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as no connection, and took a file descriptor for a minute: 20,000 of them let nobody in."""
    files = write(tmp_path, trustme.CA())
    async with serving(monkeypatch, head_s=0.2, **files) as address:
        for sent in (b"", b"\x16\x03\x01\x02\x00\x01"):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(sent)
            assert await asyncio.wait_for(reader.read(), 30) == b""
            writer.close()


async def test_files_that_change_again_while_they_are_read_do_not_end_renewals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes replaces the files of a Secret at any moment, also between two that are read."""
    old, new, later = trustme.CA(), trustme.CA(), trustme.CA()
    files = write(tmp_path, old)
    read = Certificates._loaded

    def read_and_replaced(certificates: Certificates) -> Material:
        material = read(certificates)
        if new.cert_pem.bytes() == material.authorities:
            files["tls_key"].write_bytes(b"half of a key")
        return material

    monkeypatch.setattr(Certificates, "_loaded", read_and_replaced)
    async with serving(
        monkeypatch, tls_cert=files["tls_cert"], tls_key=files["tls_key"], tls_ca=files["tls_ca"]
    ) as address:
        assert await trusted(address, old)
        write(tmp_path, new)
        await until_trusted(address, new)
        write(tmp_path, later)
        await until_trusted(address, later)


async def test_metrics_say_when_the_certificate_of_callers_ends(tmp_path: Path) -> None:
    files = write(tmp_path, trustme.CA())
    telemetry = InMemoryTelemetry("gateway")
    http = server.HttpServer(says_nothing, GatewaySettings(port=0, **files), telemetry)
    (ends,) = (
        point.value
        for point in telemetry.metrics()["evenmesh.certificate.expires.timestamp"].data.data_points
        if point.attributes == {"role": "server"}
    )
    (certificate, *_) = x509.load_pem_x509_certificates(files["tls_cert"].read_bytes())
    assert ends == certificate.not_valid_after_utc.timestamp()
    del http
    telemetry.shutdown()


async def test_a_new_authority_of_clients_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = trustme.CA(), trustme.CA()
    async with serving(monkeypatch, tls_clients="required", **write(tmp_path, old)) as address:
        assert await trusted(address, old, old)
        assert not await trusted(address, old, new)
        write(tmp_path, new)
        await until_trusted(address, new, new)
