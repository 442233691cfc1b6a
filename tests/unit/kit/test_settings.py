"""Settings: from the environment, frozen, and wrong ones reported by the variable's name."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest
from pydantic import Field, ValidationError
from pydantic_settings import SettingsConfigDict

from evenmesh.home import home
from evenmesh_kit.settings import ServiceSettings, SettingsError, load, misspelt, unread_variables, variable


class Settings(ServiceSettings):
    """Settings of a service under test."""

    model_config = SettingsConfigDict(env_prefix="EVENMESH_SAMPLE_")

    port: int = 7099
    names: tuple[str, ...] = ()
    database_url: str = Field(default="", repr=False, pattern="^(sqlite:.*)?$")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("EVENMESH_"):
            monkeypatch.delenv(name)


def test_defaults() -> None:
    settings = load(Settings)
    assert (settings.host, settings.port, settings.port_file) == ("127.0.0.1", 7099, None)
    assert settings.home == platformdirs.user_data_path("evenmesh")
    assert settings.max_message_bytes == 32 * 2**20
    assert (settings.otlp_endpoint, settings.metrics_port, settings.log_text) == (None, None, False)


def test_the_home_is_the_command_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An env file or a unit expands no ``~``, and sets an empty value where it means none."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for text, expected in (
        ("~/mesh", tmp_path / "mesh"),
        ("here", tmp_path / "here"),
        ("", platformdirs.user_data_path("evenmesh")),
    ):
        monkeypatch.setenv("EVENMESH_HOME", text)
        assert load(Settings).home == home() == expected


def test_the_environment_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVENMESH_SAMPLE_PORT", "0")
    monkeypatch.setenv("EVENMESH_SAMPLE_PORT_FILE", str(tmp_path / "port"))
    monkeypatch.setenv("EVENMESH_HOME", str(tmp_path))
    monkeypatch.setenv("EVENMESH_SAMPLE_NOT_A_SETTING", "1")
    settings = load(Settings)
    assert (settings.port, settings.port_file, settings.home) == (0, tmp_path / "port", tmp_path)


def test_home_is_shared_and_has_no_prefix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVENMESH_HOME", str(tmp_path))
    assert load(Settings).home == load(ServiceSettings).home == tmp_path
    assert variable(Settings, "home") == "EVENMESH_HOME"


def test_fields_can_be_given_by_name(tmp_path: Path) -> None:
    assert Settings(home=tmp_path, port=1).home == tmp_path


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        load(Settings).port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value", "reported"),
    [
        ("EVENMESH_SAMPLE_PORT", "x", "EVENMESH_SAMPLE_PORT=x: .*integer"),
        ("EVENMESH_SAMPLE_METRICS_PORT", "65536", "EVENMESH_SAMPLE_METRICS_PORT=65536: .*<= 65535"),
        ("EVENMESH_SAMPLE_GRACE_S", "-1", "EVENMESH_SAMPLE_GRACE_S=-1: .*allowed: >= 0, <= 3600"),
        ("EVENMESH_SAMPLE_GRACE_S", "nan", "EVENMESH_SAMPLE_GRACE_S=nan: .*finite"),
        ("EVENMESH_SAMPLE_DEFAULT_DEADLINE_S", "0", "EVENMESH_SAMPLE_DEFAULT_DEADLINE_S=0: .*> 0"),
        ("EVENMESH_SAMPLE_TRACE_SAMPLE_RATIO", "1.5", "EVENMESH_SAMPLE_TRACE_SAMPLE_RATIO=1.5: .*<= 1"),
        ("EVENMESH_SAMPLE_MAX_WORK", "0", "EVENMESH_SAMPLE_MAX_WORK=0: .*>= 1"),
        ("EVENMESH_SAMPLE_LOG_LEVEL", "LOUD", "EVENMESH_SAMPLE_LOG_LEVEL=LOUD: .*'DEBUG', 'INFO'"),
        ("EVENMESH_SAMPLE_LOG_TEXT", "perhaps", "EVENMESH_SAMPLE_LOG_TEXT=perhaps: .*boolean"),
        ("EVENMESH_SAMPLE_NAMES", "[", "EVENMESH_SAMPLE_NAMES=\\[: .*JSON"),
        ("EVENMESH_SAMPLE_NAMES", '["a", 5]', "EVENMESH_SAMPLE_NAMES\\[1\\]=5: .*string"),
    ],
)
def test_a_wrong_value_is_reported_by_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, reported: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=f"^{reported}") as failed:
        load(Settings)
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EVENMESH_SAMPLE_DATABASE_URL", "postgres//ada:hunter2"),
        ("EVENMESH_SAMPLE_NAMES", "['ada:hunter2@collector'"),
        ("EVENMESH_SAMPLE_PORT", "hunter2@7070"),
        ("EVENMESH_API_KEYS_DEFAULT_TENANT", "hunter2@x"),
    ],
)
def test_no_password_is_shown(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=f"^{name}=…") as failed:
        load(Settings)
    assert "hunter2" not in str(failed.value)


def test_every_problem_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENMESH_SAMPLE_PORT", "x")
    monkeypatch.setenv("EVENMESH_SAMPLE_GRACE_S", "-1")
    with pytest.raises(SettingsError) as failed:
        load(Settings)
    assert sorted(line.partition("=")[0] for line in str(failed.value).splitlines()) == [
        "EVENMESH_SAMPLE_GRACE_S",
        "EVENMESH_SAMPLE_PORT",
    ]


def test_names_in_certificates_that_nobody_is_asked_for_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("CERT", "KEY", "CA"):
        monkeypatch.setenv(f"EVENMESH_TLS_{name}", str(tmp_path / name))
    monkeypatch.setenv("EVENMESH_TLS_SERVICES", "orchestrator.mesh")
    with pytest.raises(SettingsError, match="EVENMESH_TLS_CLIENTS=required"):
        load(ServiceSettings)
    monkeypatch.setenv("EVENMESH_TLS_CLIENTS", "required")
    assert load(ServiceSettings).tls_services == ("orchestrator.mesh",)


def test_variables_that_set_nothing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "EVENMESH_SAMPLE_PORTT",
        "EVENMESH_SAMPLE_WHATEVER",
        "EVENMESH_SAMPLE_API_KEYS",
        "evenmesh_sample_grace_s",
        "EVENMESH_API_KEY",
        "EVENMESH_LIMITSS",
        "EVENMESH_OTHER_PORTT",
    ):
        monkeypatch.setenv(name, "5")
    assert unread_variables(Settings()) == [
        "EVENMESH_LIMITSS (is it EVENMESH_LIMITS?)",
        "EVENMESH_SAMPLE_PORTT (is it EVENMESH_SAMPLE_PORT?)",
        "EVENMESH_SAMPLE_WHATEVER",
    ]


def test_where_all_services_are_known_no_variable_is_anothers() -> None:
    known = {"EVENMESH_SAMPLE_PORT", "EVENMESH_TLS_CERT"}
    given = ("EVENMESH_MESH_TLS_CERT", "EVENMESH_SAMPLE_SOMETHING_ELSE", "EVENMESH_API_KEY", "HOME")
    prefixes = ("EVENMESH_SAMPLE_",)

    assert misspelt(given, known, prefixes) == [
        "EVENMESH_MESH_TLS_CERT (is it EVENMESH_TLS_CERT?)",
        "EVENMESH_SAMPLE_SOMETHING_ELSE",
    ]
    assert misspelt(given, known, prefixes, others=True) == ["EVENMESH_SAMPLE_SOMETHING_ELSE"]
