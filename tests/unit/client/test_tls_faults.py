"""Why no TLS connection came about."""

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


@asynccontextmanager
async def listening(folder: Path, certificate: trustme.LeafCert | None) -> AsyncIterator[str]:
    """A server without methods, and its address."""
    server = grpc.aio.server()
    if certificate is None:
        port = server.add_insecure_port(f"{HERE}:0")
    else:
        chain, key = folder / "chain.pem", folder / "key.pem"
        chain.write_bytes(b"".join(part.bytes() for part in certificate.cert_chain_pems))
        key.write_bytes(certificate.private_key_pem.bytes())
        credentials = server_credentials(Certificates(chain, key, None), require_client=False)
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


async def test_a_command_gives_no_advice_to_start_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ca.pem").write_bytes(trustme.CA().cert_pem.bytes())
    monkeypatch.setenv("EVENMESH_TLS_CA", str(tmp_path / "ca.pem"))

    async with listening(tmp_path, None) as address:
        monkeypatch.setenv("EVENMESH_CLIENT_RETRIEVER_TARGET", address)
        assert await asyncio.to_thread(main, ["collections"]) == 1

    assert capsys.readouterr().err.endswith("it does not speak TLS, which EVENMESH_TLS_CA asks for\n")
