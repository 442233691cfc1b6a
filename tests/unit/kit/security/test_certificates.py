"""TLS and mutual TLS over real connections, with certificates that change while both sides run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from evenmesh.common.v1.common_pb2 import ItemError
from evenmesh.wire import mesh_channel
from evenmesh.wire.certificates import CertificateError, Certificates
from evenmesh.wire.channel import connect, connect_sync
from evenmesh.wire.security import ChannelSecurity, ChannelSecurityError
from evenmesh_kit.process.start import ServerStartError
from evenmesh_kit.security import caller
from evenmesh_kit.settings import ServiceSettings, SettingsError, load

SERVICE = "evenmesh.test.v1.EchoService"


@dataclass(frozen=True)
class Files:
    """Certificate, key and authority in a folder."""

    folder: Path

    @property
    def paths(self) -> tuple[Path, Path, Path]:
        """Of the certificate, the key, the authorities."""
        return self.folder / "cert.pem", self.folder / "key.pem", self.folder / "ca.pem"

    def write(self, authority: trustme.CA, *names: str, trusted: trustme.CA | None = None) -> Files:
        """Issues a certificate and puts it there, each file at once."""
        issued = authority.issue_cert(*(names or ("127.0.0.1",)))
        chain = b"".join(part.bytes() for part in issued.cert_chain_pems)
        contents = (chain, issued.private_key_pem.bytes(), (trusted or authority).cert_pem.bytes())
        self.folder.mkdir(exist_ok=True)
        for path, content in zip(self.paths, contents, strict=True):
            beside = path.with_suffix(".new")
            beside.write_bytes(content)
            beside.replace(path)
        return self

    @property
    def environment(self) -> dict[str, str]:
        """Variables that name them."""
        chain, key, authorities = map(str, self.paths)
        return {"EVENMESH_TLS_CERT": chain, "EVENMESH_TLS_KEY": key, "EVENMESH_TLS_CA": authorities}

    @property
    def settings(self) -> dict[str, Any]:
        """The same as settings of a service."""
        return dict(zip(("tls_cert", "tls_key", "tls_ca"), self.paths, strict=True))


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Whom everyone here trusts."""
    return trustme.CA()


@pytest.fixture
def server_files(tmp_path: Path, authority: trustme.CA) -> Files:
    """The server's."""
    return Files(tmp_path / "server").write(authority)


@pytest.fixture
def client_files(tmp_path: Path, authority: trustme.CA) -> Files:
    """The caller's."""
    return Files(tmp_path / "client").write(authority, "orchestrator.mesh")


async def echoed(address: str, environment: dict[str, str]) -> str:
    """What a call answers, or the code it fails with."""
    security = ChannelSecurity.find(environment)
    async with connect(address, service=SERVICE, security=security) as channel:
        return await asked(channel)


async def asked(channel: grpc.aio.Channel) -> str:
    """One call."""
    method = channel.unary_unary(
        f"/{SERVICE}/unary",
        request_serializer=ItemError.SerializeToString,
        response_deserializer=ItemError.FromString,
    )
    try:
        reply: ItemError = await method(ItemError(message="a"), timeout=10)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return reply.message


async def test_a_channel_speaks_tls_with_whom_it_trusts_alone(
    serve: Any, server_files: Files, tmp_path: Path
) -> None:
    server = await serve(settings=server_files.settings)
    others = Files(tmp_path / "others").write(trustme.CA())
    trusting = {"EVENMESH_TLS_CA": server_files.environment["EVENMESH_TLS_CA"]}
    assert await echoed(server.address, trusting) == "a"
    assert await echoed(server.address, {}) == "UNAVAILABLE"
    assert await echoed(server.address, {"EVENMESH_TLS_CA": str(others.paths[2])}) == "UNAVAILABLE"
    assert await echoed(server.address, {"EVENMESH_TLS_CA": "system"}) == "UNAVAILABLE"
    sync = await asyncio.to_thread(_asked_sync, server.address, trusting)
    assert sync == "a"


def _asked_sync(address: str, environment: dict[str, str]) -> str:
    channel = connect_sync(address, service=SERVICE, security=ChannelSecurity.find(environment))
    method = channel.unary_unary(
        f"/{SERVICE}/unary",
        request_serializer=ItemError.SerializeToString,
        response_deserializer=ItemError.FromString,
    )
    reply: ItemError = method(ItemError(message="a"), timeout=10)
    channel.close()
    return reply.message


async def test_a_certificate_for_another_name_is_not_taken(
    serve: Any, authority: trustme.CA, tmp_path: Path
) -> None:
    files = Files(tmp_path / "server").write(authority, "another.example")
    server = await serve(settings=files.settings)
    assert await echoed(server.address, {"EVENMESH_TLS_CA": str(files.paths[2])}) == "UNAVAILABLE"


async def test_mutual_tls_asks_the_caller_too(
    serve: Any, server_files: Files, client_files: Files, tmp_path: Path
) -> None:
    server = await serve(settings=server_files.settings | {"tls_clients": "required"})
    nobody = {"EVENMESH_TLS_CA": str(server_files.paths[2])}
    forged = Files(tmp_path / "forged").write(trustme.CA(), "orchestrator.mesh").environment | nobody
    assert await echoed(server.address, client_files.environment) == "a"
    assert await echoed(server.address, nobody) == "UNAVAILABLE"
    assert await echoed(server.address, forged) == "UNAVAILABLE"


async def test_a_name_in_a_certificate_makes_a_service_that_speaks_for_a_tenant(
    serve: Any, server_files: Files, client_files: Files
) -> None:
    seen = []

    async def unary(request: ItemError, context: Any) -> ItemError:
        seen.append(caller.current())
        return request

    secured = server_files.settings | {"tls_clients": "required", "tls_services": ("orchestrator.mesh",)}
    server = await serve(settings=secured, unary=unary)
    caller.enter(caller.Caller("ada", "acme", frozenset()))
    security = ChannelSecurity.find(client_files.environment)
    async with connect(server.address, service=SERVICE, security=security) as channel:
        method = channel.unary_unary(
            f"/{SERVICE}/unary",
            request_serializer=ItemError.SerializeToString,
            response_deserializer=ItemError.FromString,
        )
        await method(ItemError(), timeout=10)
    assert [(one.name, one.tenant) for one in seen] == [("orchestrator.mesh", "acme")]


async def test_others_with_a_certificate_are_nobody(
    serve: Any, server_files: Files, tmp_path: Path, authority: trustme.CA
) -> None:
    secured = server_files.settings | {"tls_clients": "required", "tls_services": ("orchestrator.mesh",)}
    server = await serve(settings=secured)
    stranger = Files(tmp_path / "stranger").write(authority, "stranger.mesh")
    assert await echoed(server.address, stranger.environment) == "UNAUTHENTICATED"


async def test_certificates_are_renewed_while_both_sides_run(
    serve: Any,
    server_files: Files,
    client_files: Files,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mesh_channel, "CERTIFICATE_CHECK_S", 0.0)
    server = await serve(settings=server_files.settings | {"tls_clients": "required"})
    security = ChannelSecurity.find(client_files.environment)
    async with connect(server.address, service=SERVICE, security=security) as channel:
        assert await asked(channel) == "a"
        new = trustme.CA()
        server_files.write(new)
        # The running connection holds; a new one meets the new certificate, which is not trusted yet.
        assert await asked(channel) == "a"
        assert await echoed(server.address, client_files.environment) == "UNAVAILABLE"
        client_files.write(new, "orchestrator.mesh")
        assert await asked(channel) == "a"
        assert await echoed(server.address, client_files.environment) == "a"


async def test_channels_with_the_same_certificates_all_go_on_with_new_ones(
    serve: Any, server_files: Files, client_files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh_channel, "CERTIFICATE_CHECK_S", 0.0)
    server = await serve(settings=server_files.settings)
    security = ChannelSecurity.find(client_files.environment)
    async with (
        connect(server.address, service=SERVICE, security=security) as one,
        connect(server.address, service=SERVICE, security=security) as two,
    ):
        assert [await asked(one), await asked(two)] == ["a", "a"]
        client_files.write(trustme.CA(), "orchestrator.mesh")  # which does not trust the server
        assert [await asked(one), await asked(two)] == ["UNAVAILABLE", "UNAVAILABLE"]


async def test_a_stream_outlives_the_renewal_of_its_certificate(
    serve: Any, server_files: Files, client_files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh_channel, "CERTIFICATE_CHECK_S", 0.0)
    more = asyncio.Event()

    async def server_stream(request: ItemError, context: Any) -> AsyncIterator[ItemError]:
        yield ItemError(message="before")
        await more.wait()
        yield ItemError(message="after")

    server = await serve(settings=server_files.settings, server_stream=server_stream)
    security = ChannelSecurity.find(client_files.environment)
    async with connect(server.address, service=SERVICE, security=security) as channel:
        stream = channel.unary_stream(
            f"/{SERVICE}/server_stream",
            request_serializer=ItemError.SerializeToString,
            response_deserializer=ItemError.FromString,
        )(ItemError(), timeout=20)
        assert (await stream.read()).message == "before"
        client_files.write(trustme.CA(), "orchestrator.mesh")
        assert await asked(channel) == "UNAVAILABLE"  # trusts the new authority alone now
        more.set()
        assert (await stream.read()).message == "after"


def test_material_that_cannot_be_used_leaves_the_one_before(server_files: Files) -> None:
    certificates = Certificates(*server_files.paths)
    before = certificates.material
    assert (certificates.failures, certificates.stale()) == (0, False)
    chain, key, _ = server_files.paths
    good = key.read_bytes()
    key.write_text("nonsense")
    assert (certificates.stale(), certificates.failures) == (True, 1)
    key.unlink()
    assert (certificates.stale(), certificates.failures) == (True, 2)
    assert certificates.material is before
    key.write_bytes(good)
    assert (certificates.stale(), certificates.failures) == (False, 2)
    assert certificates.material is before  # the same again
    server_files.write(trustme.CA())
    assert certificates.material.chain == chain.read_bytes()


def test_files_that_make_no_certificate_are_reported(server_files: Files, tmp_path: Path) -> None:
    chain, key, authorities = server_files.paths
    with pytest.raises(CertificateError, match="name both"):
        Certificates(chain, None, authorities)
    with pytest.raises(CertificateError, match=r"none\.pem"):
        Certificates(tmp_path / "none.pem", key, authorities)
    other = Files(tmp_path / "other").write(trustme.CA())
    with pytest.raises(CertificateError, match="do not belong together"):
        Certificates(chain, other.paths[1], authorities)
    with pytest.raises(CertificateError, match=r"key\.pem"):
        Certificates(chain, key, key)
    with pytest.raises(ChannelSecurityError, match="EVENMESH_TLS_CA"):
        ChannelSecurity.find({"EVENMESH_TLS_CA": str(tmp_path / "none.pem")})
    with pytest.raises(ChannelSecurityError, match="one of them"):
        ChannelSecurity.find({"EVENMESH_API_KEY": "k", "EVENMESH_TOKEN_FILE": "f"})


async def test_a_service_with_wrong_files_does_not_start(serve: Any, tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text("[[key]]\n")
    for settings, variable in (
        ({"tls_cert": tmp_path / "c", "tls_key": tmp_path / "k"}, "EVENMESH_TLS_CERT"),
        ({"api_keys": tmp_path / "keys.toml"}, "EVENMESH_API_KEYS"),
        ({"jwks": str(tmp_path / "none.json"), "jwt_audience": "a"}, "EVENMESH_JWKS"),
    ):
        with pytest.raises(ServerStartError, match=variable):
            await serve(settings=settings)


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"EVENMESH_HOST": "192.0.2.1"}, "needs TLS .* and a way to know who calls"),
        ({"EVENMESH_HOST": "mesh.example"}, "EVENMESH_ALLOW_INSECURE"),
        (
            {"EVENMESH_HOST": "::", "EVENMESH_TLS_CERT": "c", "EVENMESH_TLS_KEY": "k"},
            r"needs a way to know who calls \(",
        ),
        ({"EVENMESH_HOST": "10.0.0.1", "EVENMESH_API_KEYS": "f"}, r"needs TLS \([^)]*\);"),
        ({"EVENMESH_TLS_CERT": "c"}, "EVENMESH_TLS_KEY=.*a certificate its key"),
        ({"EVENMESH_TLS_CLIENTS": "required"}, "EVENMESH_TLS_CLIENTS=required: needs TLS"),
        ({"EVENMESH_JWKS": "f"}, "EVENMESH_JWT_AUDIENCE"),
    ],
)
def test_an_unsafe_listener_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], complaint: str
) -> None:
    for name in [name for name in os.environ if name.startswith("EVENMESH_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=complaint):
        load(ServiceSettings)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]"])
def test_this_machine_needs_no_security(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("EVENMESH_HOST", host)
    assert load(ServiceSettings).host == host.strip("[]")
