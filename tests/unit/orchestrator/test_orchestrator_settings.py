"""Settings of the orchestrator."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenmesh_kit.settings import SettingsError, load
from evenmesh_orchestrator.__main__ import pipeline_config
from evenmesh_orchestrator.domain import Stage
from evenmesh_orchestrator.settings import OrchestratorSettings


def test_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVENMESH_HOME", str(tmp_path))
    settings = load(OrchestratorSettings)
    assert (settings.port, settings.default_collection, settings.default_reranker) == (
        7070,
        "demo",
        "cross-encoder",
    )
    assert settings.evaluator_target == "dns:///127.0.0.1:7074"
    assert settings.outbox_file() == tmp_path / "orchestrator" / "outbox.db"


def test_sources_are_read_from_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "EVENMESH_ORCHESTRATOR_SOURCES",
        '{"Wiki": {"collection": "wiki", "retriever": "dense"}, "SE": {"web": "searx"},'
        ' "HB": {"all": ["Wiki", "SE", "PK"]}}',
    )
    settings = load(OrchestratorSettings)
    assert settings.source_catalogue().names == ("HB", "SE", "Wiki", "PK", "ReFree")
    assert settings.source_catalogue().read("HB@RR@10").max_passages == 10


def test_the_pipeline_follows_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENMESH_ORCHESTRATOR_RERANK_SHARE", "0.5")
    config = pipeline_config(load(OrchestratorSettings))
    assert config.shares == {Stage.RETRIEVE: 0.25, Stage.RERANK: 0.5}


def test_nothing_is_called_twice_unless_asked_for() -> None:
    settings = load(OrchestratorSettings)
    assert (settings.hedge_retrieve_s, settings.hedge_rerank_s) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RETRIEVE_SHARE", "1.5", "EVENMESH_ORCHESTRATOR_RETRIEVE_SHARE"),
        ("RERANK_SHARE", "0.8", "RERANK_SHARE"),  # with retrieve and closing more than the whole
        ("BREAKER_FAILURES", "0", "EVENMESH_ORCHESTRATOR_BREAKER_FAILURES"),
        ("HEDGE_SHARE", "1.1", "EVENMESH_ORCHESTRATOR_HEDGE_SHARE"),
        ("DEFAULT_COLLECTION", "No Such", "EVENMESH_ORCHESTRATOR_DEFAULT_COLLECTION"),
        ("BATCH_SIZE", "257", "EVENMESH_ORCHESTRATOR_BATCH_SIZE"),
        ("SOURCES", '{"HB": {"all": ["Wiki"]}}', "EVENMESH_ORCHESTRATOR_SOURCES=.*source HB: there is no"),
        (
            "SOURCES",
            '{"Wiki": {"colection": "w"}}',
            r"EVENMESH_ORCHESTRATOR_SOURCES\[Wiki\]\[colection\]=w: ",
        ),
        ("SOURCES", "{", "EVENMESH_ORCHESTRATOR_SOURCES=.*JSON"),
    ],
)
def test_a_wrong_value_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(f"EVENMESH_ORCHESTRATOR_{name}", value)
    with pytest.raises(SettingsError, match=message):
        load(OrchestratorSettings)
