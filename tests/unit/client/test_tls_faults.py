"""Why no connection came about, if a server is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
import trustme

from evenmesh import Addresses, AsyncClient, MeshError
from evenmesh.commands import main
from evenmesh.wire.certificates import Certificates, server_credentials

HERE = "127.0.0.1"
NOW = datetime.now(UTC)
DAY = timedelta(days=1)


def files(folder: Path, name: str, certificate: trustme.LeafCert) -> tuple[Path, Path]:
    """Write a certificate and its key, and return their files."""
    chain, key = folder / f"{name}.pem", folder / f"{name}.key"
    chain.write_bytes(b"".join(part.bytes() for part in certificate.cert_chain_pems))
    key.write_bytes(certificate.private_key_pem.bytes())
    return chain, key


@asynccontextmanager
async def listening(
    folder: Path, certificate: trustme.LeafCert | None, *, require_client: bool = False
) -> AsyncIterator[str]:
    """A server without methods, and its address; it may ask for certificates of the authority ``ca.pem``."""
    server = grpc.aio.server()
    if certificate is None:
        port = server.add_insecure_port(f"{HERE}:0")
    else:
        certificates = Certificates(*files(folder, "server", certificate), folder / "ca.pem")
        credentials = server_credentials(certificates, require_client=require_client)
        port = server.add_secure_port(f"{HERE}:0", credentials)
    await server.start()
    try:
        yield f"{HERE}:{port}"
    finally:
        await server.stop(0)


@pytest.mark.parametrize(
    ("certificate", "why"),
    [
        ("expired", "its certificate, or that of its authority, has expired"),
        ("early", "its certificate is not valid yet"),
        ("renamed", "its certificate is for another name"),
        ("strange", "no authority that EVENMESH_TLS_CA names has signed its certificate"),
        (None, "it does not speak TLS, which EVENMESH_TLS_CA asks for"),
    ],
)
async def test_a_call_tells_why_there_is_no_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certificate: str | None, why: str
) -> None:
    authority = trustme.CA()
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    monkeypatch.setenv("EVENMESH_TLS_CA", str(tmp_path / "ca.pem"))
    make: dict[str | None, Callable[[], trustme.LeafCert | None]] = {
        "expired": lambda: authority.issue_cert(HERE, not_before=NOW - 2 * DAY, not_after=NOW - DAY),
        "early": lambda: authority.issue_cert(HERE, not_before=NOW + DAY, not_after=NOW + 2 * DAY),
        "renamed": lambda: authority.issue_cert("elsewhere.mesh"),
        "strange": lambda: trustme.CA().issue_cert(HERE),
        None: lambda: None,
    }

    async with (
        listening(tmp_path, make[certificate]()) as address,
        AsyncClient(Addresses(retriever=address)) as client,
    ):
        with pytest.raises(MeshError) as failed:
            await client.collections()

    assert failed.value.reason == "UNREACHABLE"
    assert failed.value.message == f"no TLS with the retriever at {address}: {why}"


@pytest.mark.parametrize("certificate", ["expired", "strange", "missing", "no TLS"])
async def test_a_call_tells_what_to_check_where_the_service_refuses_its_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certificate: str
) -> None:
    authority = trustme.CA()
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    if certificate != "no TLS":
        monkeypatch.setenv("EVENMESH_TLS_CA", str(tmp_path / "ca.pem"))
    if certificate in ("expired", "strange"):
        made = (
            authority.issue_cert("caller", not_before=NOW - 2 * DAY, not_after=NOW - DAY)
            if certificate == "expired"
            else trustme.CA().issue_cert("caller")
        )
        chain, key = files(tmp_path, "client", made)
        monkeypatch.setenv("EVENMESH_TLS_CERT", str(chain))
        monkeypatch.setenv("EVENMESH_TLS_KEY", str(key))

    async with (
        listening(tmp_path, authority.issue_cert(HERE), require_client=True) as address,
        AsyncClient(Addresses(retriever=address)) as client,
    ):
        with pytest.raises(MeshError) as failed:
            await client.collections()

    assert failed.value.reason == "UNREACHABLE"
    message = failed.value.message
    assert message.startswith(f"no gRPC with the retriever at {address}: it closes the connection."), message
    assert "EVENMESH_TLS_CA" in message
    assert "EVENMESH_TLS_CERT" in message


async def test_a_command_tells_that_the_address_is_that_of_a_server_of_http(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, HERE, 0) as server:
        address = "{}:{}".format(*server.sockets[0].getsockname())
        monkeypatch.setenv("EVENMESH_CLIENT_RETRIEVER_TARGET", address)
        assert await asyncio.to_thread(main, ["collections"]) == 1

    assert capsys.readouterr().err.endswith(
        f"no gRPC with the retriever at {address}: a server of HTTP/1.1 answers there, such as the gateway; "
        "gRPC has another port\n"
    )


async def test_a_command_gives_no_advice_to_start_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ca.pem").write_bytes(trustme.CA().cert_pem.bytes())
    monkeypatch.setenv("EVENMESH_TLS_CA", str(tmp_path / "ca.pem"))

    async with listening(tmp_path, None) as address:
        monkeypatch.setenv("EVENMESH_CLIENT_RETRIEVER_TARGET", address)
        assert await asyncio.to_thread(main, ["collections"]) == 1

    assert capsys.readouterr().err.endswith("it does not speak TLS, which EVENMESH_TLS_CA asks for\n")
