"""The settings of the gateway, and who asks whether it is ready."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from evenmesh_gateway import ready
from evenmesh_gateway.settings import GatewaySettings
from evenmesh_kit.settings import SettingsError, load
from tests.support import ports


class Closed:
    """Owns a port on which nobody listens."""


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("CORS_ORIGINS", "app.example.com", "must be origins"),
        ("CORS_ORIGINS", "https://app.example.com/path", "must be origins"),
        ("MAX_HEADER_BYTES", "10", "allowed: >= 1024"),
        ("OIDC_ISSUER", "http://id.example.com", "must be an address such as https"),
        ("OIDC_ISSUER", "https://id.example.com/?a=b", "must be an address such as https"),
        ("PROMETHEUS", "prometheus:9090", "must be an address such as http"),
        ("TRACES", "https://jaeger.example.com", "with {trace_id} in it once"),
        ("HOST", "0.0.0.0", "needs TLS"),  # noqa: S104 - it is refused
    ],
)
def test_a_wrong_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str
) -> None:
    monkeypatch.setenv(f"EVENMESH_GATEWAY_{variable}", value)
    with pytest.raises(SettingsError, match=f"EVENMESH_GATEWAY_{variable}=.*{words}"):
        load(GatewaySettings)


def test_an_issuer_needs_a_client_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENMESH_GATEWAY_OIDC_ISSUER", "https://id.example.com")
    with pytest.raises(SettingsError, match="EVENMESH_GATEWAY_OIDC_CLIENT_ID, and EVENMESH_JWKS"):
        load(GatewaySettings)
    monkeypatch.setenv("EVENMESH_GATEWAY_OIDC_CLIENT_ID", "console")
    monkeypatch.setenv("EVENMESH_JWKS", "https://id.example.com/jwks")
    monkeypatch.setenv("EVENMESH_JWT_AUDIENCE", "evenmesh")
    assert load(GatewaySettings).oidc_scopes == "openid"


def test_lists_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENMESH_GATEWAY_CORS_ORIGINS", "https://a.example, http://localhost:3000")
    monkeypatch.setenv("EVENMESH_GATEWAY_HOSTS", "A.example,b.example")
    settings = load(GatewaySettings)
    assert settings.cors_origins == ("https://a.example", "http://localhost:3000")
    assert settings.known_hosts == {"a.example", "b.example"}


async def test_the_image_asks_whether_it_is_ready(
    gateway: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("EVENMESH_GATEWAY_PORT", str(gateway.base_url.port))
    assert await asyncio.to_thread(ready.main) == 0
    closed = Closed()
    monkeypatch.setenv("EVENMESH_GATEWAY_PORT", str(ports.reserve(closed)))
    assert await asyncio.to_thread(ready.main) == 1
    assert "refused" in capsys.readouterr().err
