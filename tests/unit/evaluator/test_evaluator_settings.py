"""Settings of the evaluator."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from evenmesh_evaluator.settings import EvaluatorSettings
from evenmesh_kit.settings import SettingsError, load
from evenmesh_kit.storage.failures import StoreFailure


def test_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVENMESH_HOME", str(tmp_path))
    settings = load(EvaluatorSettings)
    assert settings.port == 7074
    assert settings.database().drivername == "sqlite+aiosqlite"
    assert settings.database().database == str(tmp_path / "evaluator" / "observations.db")


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("sqlite:////var/lib/x.db", "sqlite+aiosqlite"),
        ("postgresql://user:secret@db/evenmesh", "postgresql+asyncpg"),
    ],
)
def test_a_url_gets_the_async_driver(monkeypatch: pytest.MonkeyPatch, url: str, driver: str) -> None:
    monkeypatch.setenv("EVENMESH_EVALUATOR_DATABASE_URL", url)
    assert load(EvaluatorSettings).database().drivername == driver


@pytest.mark.parametrize("url", ["nonsense", "mysql://db/x", "sqlite://", "sqlite:///:memory:"])
def test_a_wrong_url_names_the_variable(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("EVENMESH_EVALUATOR_DATABASE_URL", url)
    with pytest.raises(SettingsError, match="EVENMESH_EVALUATOR_DATABASE_URL"):
        load(EvaluatorSettings)


@pytest.mark.parametrize(
    ("code", "names"),
    [
        (sqlite3.SQLITE_CANTOPEN, True),
        (sqlite3.SQLITE_NOTADB, False),
        (sqlite3.SQLITE_FULL, False),
        (sqlite3.SQLITE_BUSY, False),
    ],
)
def test_a_place_is_named_only_where_it_is_at_fault(tmp_path: Path, code: int, names: bool) -> None:
    """What is damaged, full or locked is not cured by another home, in which all data would seem gone."""
    error = sqlite3.OperationalError()
    error.sqlite_errorcode = code
    said = EvaluatorSettings(home=tmp_path).remedy(StoreFailure(error, "the database"))
    assert ("EVENMESH_" in said) is names
