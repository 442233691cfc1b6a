"""An end is reported of what handshakes show, and a file that is not in force without anybody who calls."""

from __future__ import annotations

import asyncio
import builtins
import gc
import logging
import socket
import ssl
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
import trustme
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families
from pydantic_settings import SettingsConfigDict

from evenmesh.wire import file_watch
from evenmesh.wire.certificates import Certificates, Material
from evenmesh.wire.channel import connect
from evenmesh.wire.security import ChannelSecurity
from evenmesh_kit.rpc.server import MeshServer
from evenmesh_kit.security import keys
from evenmesh_kit.security.triton_tls import TritonTls
from evenmesh_kit.settings import ServiceSettings
from evenmesh_kit.telemetry.setup import Telemetry
from tests.support.in_memory_telemetry import InMemoryTelemetry
from tests.support.lifecycle import Idle

SERVICE: Final = "evenmesh.test.v1.EchoService"
ENDED, SOON, LATER, LATEST = (datetime(year, 5, 17, 3, 4, 5, tzinfo=UTC) for year in (2020, 2030, 2031, 2032))


class Settings(ServiceSettings):
    """Settings of the service under test."""

    model_config = SettingsConfigDict(env_prefix="EVENMESH_ECHO_")


class TritonSettings(TritonTls):
    """Settings of a service that calls a Triton server."""

    model_config = SettingsConfigDict(env_prefix="EVENMESH_ECHO_")


def put(path: Path, *parts: trustme.Blob) -> Path:
    """Puts a file into the place of another at once."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_bytes(b"".join(part.bytes() for part in parts))
    beside.replace(path)
    return path


@dataclass(frozen=True)
class Files:
    """Certificate, key and authority in a folder."""

    folder: Path
    authority: trustme.CA

    @property
    def paths(self) -> tuple[Path, Path, Path]:
        """Of the certificate, the key, the authorities."""
        return self.folder / "cert.pem", self.folder / "key.pem", self.folder / "ca.pem"

    def write(self, *ends: datetime) -> Files:
        """Puts a certificate there that ends at the first time, with others behind it in the chain."""
        issued, *behind = (self.authority.issue_cert("127.0.0.1", not_after=end) for end in ends)
        chain, key, authorities = self.paths
        put(chain, *issued.cert_chain_pems, *(part for one in behind for part in one.cert_chain_pems))
        put(key, issued.private_key_pem)
        put(authorities, self.authority.cert_pem)
        return self

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of a service that name them."""
        return dict(zip(("tls_cert", "tls_key", "tls_ca"), self.paths, strict=True))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Those of a service."""
    return Files(tmp_path, trustme.CA()).write(LATER)


@pytest.fixture
def telemetry() -> InMemoryTelemetry:
    """What records."""
    return InMemoryTelemetry("echo")


def reported(telemetry: InMemoryTelemetry, name: str) -> dict[str, float]:
    """The values of a metric by its label."""
    metric = telemetry.metrics().get(f"evenmesh.{name}")
    points: Any = [] if metric is None else metric.data.data_points
    return {label: point.value for point in points for label in point.attributes.values()}


def ends(telemetry: InMemoryTelemetry) -> dict[str, datetime]:
    """When certificates end, by role; authorities aside."""
    found = reported(telemetry, "certificate.expires.timestamp")
    return {role: datetime.fromtimestamp(at, UTC) for role, at in found.items() if role != "authority"}


def end_of(pem: bytes) -> datetime:
    """When a certificate ends."""
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc


async def shown_by(server: MeshServer) -> datetime:
    """When the certificate ends that a new connection is shown."""

    def connected() -> bytes:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        host, _, port = server.address.rpartition(":")
        with (
            socket.create_connection((host, int(port)), timeout=20) as plain,
            context.wrap_socket(plain) as tls,
        ):
            found = tls.getpeercert(binary_form=True)
            assert found is not None
            return ssl.DER_cert_to_PEM_cert(found).encode()

    return end_of(await asyncio.to_thread(connected))


async def test_the_end_is_that_of_the_certificate_that_handshakes_show(
    serve: Any, files: Files, telemetry: InMemoryTelemetry
) -> None:
    server = await serve(telemetry=telemetry, settings=files.settings)
    assert ends(telemetry) == {"server": LATER}
    assert await shown_by(server) == LATER
    files.write(LATEST)
    # Reported before anybody has called, and the change is not taken away from the next who does.
    assert ends(telemetry) == {"server": LATEST}
    assert await shown_by(server) == LATEST
    files.write(SOON)
    assert await shown_by(server) == SOON
    assert ends(telemetry) == {"server": SOON}


async def test_what_has_ended_and_cannot_be_replaced_is_reported(
    serve: Any, files: Files, telemetry: InMemoryTelemetry
) -> None:
    files.write(ENDED)
    server = await serve(telemetry=telemetry, settings=files.settings)
    assert ends(telemetry) == {"server": ENDED}
    assert reported(telemetry, "reload.stale") == {"certificate": 0}
    files.paths[0].write_bytes(files.authority.issue_cert("127.0.0.1").cert_chain_pems[0].bytes())
    # A new certificate whose key has not come: the one before is shown, and is reported.
    assert reported(telemetry, "reload.stale") == {"certificate": 1}
    assert ends(telemetry) == {"server": ENDED}
    assert await shown_by(server) == ENDED
    files.write(LATEST)
    assert reported(telemetry, "reload.stale") == {"certificate": 0}
    assert reported(telemetry, "reload.failures") == {"certificate": 1}
    assert await shown_by(server) == LATEST


def test_a_chain_ends_with_its_first_and_trust_with_its_last(
    files: Files, telemetry: InMemoryTelemetry
) -> None:
    files.write(LATEST, SOON, LATER)
    put(
        files.paths[2],
        *(files.authority.issue_cert("a", not_after=end).cert_chain_pems[0] for end in (SOON, ENDED)),
    )
    certificates = Certificates(*files.paths)
    telemetry.reloads.watch_certificates("client", certificates)
    assert reported(telemetry, "certificate.expires.timestamp") == {
        "client": SOON.timestamp(),
        "authority": SOON.timestamp(),
    }
    without = Certificates(None, None, files.paths[2])
    del certificates
    gc.collect()
    assert reported(telemetry, "reload.stale") == {}, "what nobody uses any more is not reported of"
    telemetry.reloads.watch_certificates("client", without)
    assert reported(telemetry, "certificate.expires.timestamp") == {"authority": SOON.timestamp()}


async def test_a_caller_tells_of_what_it_shows_and_of_its_token(
    serve: Any, files: Files, telemetry: InMemoryTelemetry, tmp_path: Path
) -> None:
    server = await serve(settings=files.settings)
    (tmp_path / "own").mkdir()
    own = Files(tmp_path / "own", files.authority).write(SOON)
    chain, key, authorities = map(str, own.paths)
    security = ChannelSecurity.find(
        {
            "EVENMESH_TLS_CA": authorities,
            "EVENMESH_TLS_CERT": chain,
            "EVENMESH_TLS_KEY": key,
            "EVENMESH_TOKEN_FILE": str(tmp_path / "token"),
        }
    )
    async with connect(server.address, service=SERVICE, telemetry=telemetry, security=security):
        assert ends(telemetry) == {"client": SOON}
        assert reported(telemetry, "reload.stale") == {"certificate": 0, "token": 1}
        (tmp_path / "token").write_text("a.b.c")
        assert reported(telemetry, "reload.stale") == {"certificate": 0, "token": 0}
        assert reported(telemetry, "reload.failures") == {"certificate": 0, "token": 1}


async def test_what_triton_is_shown_is_reported_from_when_it_is(
    files: Files, telemetry: InMemoryTelemetry, tmp_path: Path
) -> None:
    chain, key, authorities = files.paths
    settings = TritonSettings(
        home=tmp_path,
        triton_ssl=True,
        triton_certificate_chain=chain,
        triton_private_key=key,
        triton_root_certificates=authorities,
    )
    server = MeshServer("echo", settings, Idle(), telemetry=telemetry)
    assert ends(telemetry) == {}
    assert settings.triton_credentials() is not None
    assert ends(telemetry) == {"triton": LATER}
    files.write(LATEST)  # which is read at the next start
    assert ends(telemetry) == {"triton": LATER}
    await server.stop()


BROKEN: Final = "["


@pytest.fixture
def guarded(tmp_path: Path, files: Files) -> dict[str, Path]:
    """Files of a service with everything that is read again, by what metrics call them."""
    found = {name: tmp_path / name for name in ("api_keys", "limits", "jwks")}
    entry = {"name": "ci", "tenant": "acme", "sha256": keys.new_key()[1], "roles": ["admin"]}
    keys.add_entry(found["api_keys"], keys.KeyEntry.read(entry))
    found["limits"].write_text("[default]\ncalls_per_s = 1000\n")
    found["jwks"].write_text('{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}')
    return found | {"certificate": files.paths[0]}


async def test_a_file_that_is_not_in_force_is_reported_without_a_call(
    serve: Any,
    guarded: dict[str, Path],
    files: Files,
    telemetry: InMemoryTelemetry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_watch, "CHECK_EVERY_S", 0.0)
    settings = {name: str(path) for name, path in guarded.items() if name != "certificate"}
    await serve(telemetry=telemetry, settings=files.settings | settings | {"jwt_audience": "a"})
    fresh = dict.fromkeys(guarded, 0)
    assert reported(telemetry, "reload.stale") == reported(telemetry, "reload.failures") == fresh
    for place, (name, path) in enumerate(guarded.items(), start=1):
        good = path.read_bytes()
        path.write_text(BROKEN)
        for _ in range(2):
            assert reported(telemetry, "reload.stale") == fresh | {name: 1}
        path.write_bytes(good)
        assert reported(telemetry, "reload.stale") == fresh
        assert sum(reported(telemetry, "reload.failures").values()) == place
    assert reported(telemetry, "reload.failures") == dict.fromkeys(guarded, 1)


async def test_prometheus_reads_it(
    serve: Any, guarded: dict[str, Path], files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watch, "CHECK_EVERY_S", 0.0)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    telemetry = Telemetry.from_settings("echo", Settings(home=tmp_path, metrics_port=port))
    try:
        await serve(telemetry=telemetry, settings=files.settings | {"limits": guarded["limits"]})
        guarded["limits"].write_text(BROKEN)
        page = await asyncio.to_thread(_read, f"http://127.0.0.1:{port}/metrics")
    finally:
        telemetry.shutdown()
    samples = {
        (sample.name, sample.labels.get("role") or sample.labels.get("file")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.startswith(("evenmesh_certificate_", "evenmesh_reload_"))
    }
    assert samples == {
        ("evenmesh_certificate_expires_timestamp_seconds", "server"): LATER.timestamp(),
        ("evenmesh_certificate_expires_timestamp_seconds", "authority"): end_of(
            files.authority.cert_pem.bytes()
        ).timestamp(),
        ("evenmesh_reload_stale", "certificate"): 0,
        ("evenmesh_reload_stale", "limits"): 1,
        ("evenmesh_reload_failures_total", "certificate"): 0,
        ("evenmesh_reload_failures_total", "limits"): 1,
    }


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as page:  # noqa: S310 - our own server
        text: bytes = page.read()
    return text.decode()


async def test_nothing_is_reported_where_nothing_is_set(serve: Any, telemetry: InMemoryTelemetry) -> None:
    await serve(telemetry=telemetry)
    assert not {name for name in telemetry.metrics() if name.startswith(("evenmesh.cert", "evenmesh.reload"))}


@dataclass
class Held:
    """Something in use."""

    material: Material | None = None


def test_an_end_that_cannot_be_read_is_logged_and_not_reported(
    files: Files,
    telemetry: InMemoryTelemetry,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = Held()
    telemetry.reloads.watch_expiry("server", held)
    assert ends(telemetry) == {}
    held.material = Material(b"no certificate", None, None)
    with caplog.at_level(logging.WARNING):
        assert ends(telemetry) == {}
        assert ends(telemetry) == {}
    assert [record.name for record in caplog.records] == ["evenmesh.kit.reload_monitor"]
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("cryptography"):
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    held.material = Certificates(*files.paths).material
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(builtins, "__import__", without)
        assert ends(telemetry) == {}
    assert "in a checkout, pip install './libs/kit[telemetry]'" in caplog.records[-1].getMessage()
