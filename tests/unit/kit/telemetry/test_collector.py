"""A collector with TLS gets spans and metrics with the headers of a file, and nobody else does."""

from __future__ import annotations

import os
import re
import urllib.request
from pathlib import Path

import pytest
import trustme

from evenmesh_kit.settings import ServiceSettings, SettingsError, load
from evenmesh_kit.telemetry.collector import MAX_BYTES, MAX_HEADERS, CollectorHeaders, HeadersError
from evenmesh_kit.telemetry.setup import Telemetry
from tests.support.otlp_collector import Collector
from tests.support.prometheus import reserved_ports
from tests.support.waiting import wait_until
from tests.unit.kit.conftest import EchoSettings

SECRET = "hunter2"  # noqa: S105


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca(authority: trustme.CA, tmp_path: Path) -> Path:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return tmp_path / "ca.pem"


def headers(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "headers"
    path.write_text(text)
    return path


def change(path: Path, text: str) -> None:
    """Writes a file so that its change is seen whatever the clock's resolution."""
    before = path.stat().st_mtime_ns
    path.write_text(text)
    os.utime(path, ns=(before + 10**9, before + 10**9))


def send(settings: ServiceSettings) -> None:
    """Makes one span, sends all there is, and ends."""
    telemetry = Telemetry.from_settings("echo", settings)
    with telemetry.tracer.start_as_current_span("asked"):
        pass
    telemetry.shutdown()


def test_a_collector_with_tls_gets_spans_with_the_headers_of_the_file(
    authority: trustme.CA, ca: Path, tmp_path: Path
) -> None:
    path = headers(tmp_path, f"# of the vendor\n\nAuthorization: Bearer {SECRET}:x\nx-scope: mesh\n")
    with Collector(authority) as collector:
        assert collector.endpoint.startswith("https://")
        send(
            EchoSettings(
                home=tmp_path,
                otlp_endpoint=collector.endpoint,
                otlp_ca=ca,
                otlp_headers=path,
                trace_sample_ratio=1,
            )
        )
        (span,) = collector.spans_when(lambda spans: bool(spans))
        assert (span.service, span.name) == ("echo", "asked")
        sent = collector.headers
    assert {"authorization": f"Bearer {SECRET}:x", "x-scope": "mesh"}.items() <= sent.items()


def test_a_collector_of_another_authority_gets_nothing(ca: Path, tmp_path: Path) -> None:
    with Collector(trustme.CA()) as collector:
        send(EchoSettings(home=tmp_path, otlp_endpoint=collector.endpoint, otlp_ca=ca, trace_sample_ratio=1))
        assert not collector.spans_when(lambda _: True)


def test_changed_headers_are_sent_and_broken_ones_are_not(tmp_path: Path) -> None:
    path = headers(tmp_path, "a: 1\n")
    subject = CollectorHeaders(path)
    subject._every_s = 0
    assert subject.content() == (("a", "1"),)
    change(path, "a: 2\n")
    assert subject.content() == (("a", "2"),)
    change(path, "a\n")
    assert subject.content() == (("a", "2"),)
    assert subject.stale()
    assert subject.failures == 1


def test_a_file_of_headers_that_breaks_is_reported(ca: Path, tmp_path: Path) -> None:
    path = headers(tmp_path, "a: 1\n")

    def stale(port: int) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as page:
            text = page.read().decode()
        (value,) = re.findall(r'^evenmesh_reload_stale{file="otlp_headers".*} (\S+)$', text, re.MULTILINE)
        return str(value)

    with reserved_ports(1) as (port,), Collector(trustme.CA()) as collector:
        telemetry = Telemetry.from_settings(
            "echo",
            EchoSettings(
                home=tmp_path,
                otlp_endpoint=collector.endpoint,
                otlp_ca=ca,
                otlp_headers=path,
                metrics_port=port,
            ),
        )
        try:
            assert stale(port) == "0.0"
            change(path, "a\n")
            wait_until(lambda: stale(port) == "1.0")
        finally:
            telemetry.shutdown()


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", f"between 1 and {MAX_HEADERS} headers"),
        ("# nothing\n", f"between 1 and {MAX_HEADERS} headers"),
        (f"a: 1\n{SECRET}\n", "line 2: must be `name: value`"),
        (f"a b: {SECRET}\n", "line 1: must be `name: value`"),
        (f"a: {SECRET}\u00e9\n", "line 1: must be `name: value`"),
        ("a:\n", "line 1: must be `name: value`"),
        (f"grpc-timeout: {SECRET}\n", "line 1: gRPC keeps"),
        (f"a-bin: {SECRET}\n", "line 1: gRPC keeps"),
        ("a: 1\n" * (MAX_HEADERS + 1), f"between 1 and {MAX_HEADERS} headers"),
        ("a: " + "1" * MAX_BYTES, f"more than {MAX_BYTES} bytes"),
    ],
)
def test_a_file_without_headers_is_refused_without_its_text(tmp_path: Path, text: str, reported: str) -> None:
    with pytest.raises(HeadersError, match=reported) as failed:
        CollectorHeaders(headers(tmp_path, text))
    assert SECRET not in str(failed.value)


def test_as_many_headers_as_may_be_are_taken(tmp_path: Path) -> None:
    text = "".join(f"h{number}: v\n" for number in range(MAX_HEADERS))
    assert len(CollectorHeaders(headers(tmp_path, text)).content()) == MAX_HEADERS


def test_a_service_whose_files_cannot_be_used_does_not_start(ca: Path, tmp_path: Path) -> None:
    given = {"home": tmp_path, "otlp_endpoint": "https://127.0.0.1:1"}
    broken = headers(tmp_path, "no certificate")
    for field, path, reported in (
        ("otlp_ca", broken, "^EVENMESH_OTLP_CA: .*not a PEM"),
        ("otlp_ca", tmp_path / "away", "^EVENMESH_OTLP_CA: .*No such file"),
        ("otlp_headers", broken, "^EVENMESH_OTLP_HEADERS: .*line 1"),
        ("otlp_headers", tmp_path / "away", "^EVENMESH_OTLP_HEADERS: .*No such file"),
    ):
        with pytest.raises(SettingsError, match=reported):
            Telemetry.from_settings("echo", EchoSettings(**{**given, field: path}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "endpoint",
    [
        "127.0.0.1:4317",
        "grpc://a:4317",
        "https://a",
        "http://:4317",
        "https://a:4317/v1/traces",
        "https://a:b",
        f"https://ada:{SECRET}@a:4317",
        "https://a:4317?b=c",
        "https://" + "a" * 500 + ":4317",
    ],
)
def test_an_endpoint_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("EVENMESH_ECHO_OTLP_ENDPOINT", endpoint)
    with pytest.raises(SettingsError, match=r"^EVENMESH_ECHO_OTLP_ENDPOINT=") as failed:
        load(EchoSettings)
    assert SECRET not in str(failed.value)


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:4317", "https://otel.example.com:443/", "http://[::1]:1"]
)
def test_an_endpoint_is_taken(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("EVENMESH_ECHO_OTLP_ENDPOINT", endpoint)
    assert load(EchoSettings).otlp_endpoint == endpoint


def test_headers_are_not_sent_in_plain_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVENMESH_OTLP_HEADERS", str(tmp_path / "headers"))
    monkeypatch.setenv("EVENMESH_ECHO_OTLP_ENDPOINT", "http://127.0.0.1:4317")
    with pytest.raises(
        SettingsError, match=r"^EVENMESH_OTLP_HEADERS=.*https:// in EVENMESH_ECHO_OTLP_ENDPOINT"
    ):
        load(EchoSettings)
