"""Settings of a service that calls model servers."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic_settings import SettingsConfigDict

from evenmesh_kit.remote.settings import RemoteSettings
from evenmesh_kit.remote.tei_grpc import TeiGrpcClient
from evenmesh_kit.settings import SettingsError, load


class Settings(RemoteSettings):
    """Of a service of this test."""

    model_config = SettingsConfigDict(env_prefix="EVENMESH_TEST_")


def read(monkeypatch: pytest.MonkeyPatch, **variables: str) -> Settings:
    """The settings with these variables, without their prefix."""
    for name, value in variables.items():
        monkeypatch.setenv(f"EVENMESH_TEST_REMOTE_{name}", value)
    return load(Settings)


async def test_a_client_has_what_the_settings_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-1")
    settings = read(
        monkeypatch,
        URLS="http://a:1/v1, https://b/v1/",
        API_KEY=str(key),
        PROXIES="false",
        IN_FLIGHT="3",
        CONNECT_S="1.5",
        IDLE_S="2.5",
        REST_S="3.5",
        KEEP_ALIVE_S="4.5",
        REPLY_BYTES="5000",
    )
    client = settings.remote_client()
    options = client.options
    assert [one.name for one in client.endpoints] == ["a:1", "b:443"]
    assert [one.url for one in client.endpoints] == ["http://a:1/v1", "https://b/v1"]
    assert (options.in_flight, options.proxies, options.api_key_file) == (3, False, key)
    assert (options.connect_s, options.idle_s, options.rest_s, options.keep_alive_s) == (1.5, 2.5, 3.5, 4.5)
    assert options.reply_bytes == 5000
    assert options.key_setting == "EVENMESH_TEST_REMOTE_API_KEY"
    assert options.urls_setting == "EVENMESH_TEST_REMOTE_URLS"
    await client.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("URLS", "ftp://a"),
        ("URLS", "http://me:hunter2@a/v1"),
        ("IN_FLIGHT", "0"),
        ("CONNECT_S", "0"),
        ("IDLE_S", "inf"),
        ("REST_S", "-1"),
        ("KEEP_ALIVE_S", "4000"),
        ("REPLY_BYTES", "1"),
        ("CERTIFICATE_KEY", "key.pem"),
    ],
)
def test_wrong_values_name_their_variable(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(monkeypatch, **{name: value})
    assert str(caught.value).startswith(f"EVENMESH_TEST_REMOTE_{name}=")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("URLS", {}),
        ("API_KEY", {"URLS": "http://a", "API_KEY": "missing"}),
        ("CA", {"URLS": "http://a", "CA": "missing"}),
        ("CERTIFICATE", {"URLS": "http://a", "CERTIFICATE": "missing", "CERTIFICATE_KEY": "missing"}),
    ],
)
def test_files_that_cannot_be_used_name_their_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, variables: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = read(monkeypatch, **variables)
    with pytest.raises(SettingsError) as caught:
        settings.remote_client()
    assert str(caught.value).startswith(f"EVENMESH_TEST_REMOTE_{name}: ")


async def test_only_tei_is_called_over_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read(monkeypatch, URLS="grpc://127.0.0.1:8080")
    client = settings.remote_client(tei=True)
    assert isinstance(client, TeiGrpcClient)
    await client.close()
    with pytest.raises(SettingsError, match=r"EVENMESH_TEST_REMOTE_URLS: .*http://"):
        settings.remote_client()
    mixed = read(monkeypatch, URLS="grpc://127.0.0.1:8080,http://127.0.0.1:8081")
    with pytest.raises(SettingsError, match=r"EVENMESH_TEST_REMOTE_URLS: .*grpc://"):
        mixed.remote_client(tei=True)
