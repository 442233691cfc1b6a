"""Settings of the orchestrator."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshkit.settings import SettingsError, load
from orchestrator.__main__ import plan
from orchestrator.domain import Stage
from orchestrator.settings import OrchestratorSettings


def test_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAGMESH_HOME", str(tmp_path))
    settings = load(OrchestratorSettings)
    assert (settings.port, settings.default_collection, settings.default_reranker) == (
        7070,
        "demo",
        "rankrag",
    )
    assert settings.evaluator_target == "dns:///127.0.0.1:7074"
    assert settings.outbox_file() == tmp_path / "orchestrator" / "outbox.db"


def test_sources_are_read_from_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "RAGMESH_ORCHESTRATOR_SOURCES",
        '{"Wiki": {"collection": "wiki", "retriever": "dense"}, "SE": {"web": "searx"},'
        ' "HB": {"all": ["Wiki", "SE", "PK"]}}',
    )
    settings = load(OrchestratorSettings)
    assert settings.catalogue().names == ("HB", "SE", "Wiki", "PK", "ReFree")
    assert settings.catalogue().read("HB@RR@10").most == 10


def test_the_plan_follows_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAGMESH_ORCHESTRATOR_RERANK_SHARE", "0.5")
    made = plan(load(OrchestratorSettings))
    assert [(one.stage, one.share) for one in made.stages] == [
        (Stage.RETRIEVE, 0.25),
        (Stage.RERANK, 0.5),
        (Stage.GENERATE, 1.0),
    ]


def test_nothing_is_called_twice_unless_asked_for() -> None:
    settings = load(OrchestratorSettings)
    assert (settings.hedge_retrieve_s, settings.hedge_rerank_s) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("RETRIEVE_SHARE", "1.5", "RAGMESH_ORCHESTRATOR_RETRIEVE_SHARE"),
        ("RERANK_SHARE", "0.8", "RERANK_SHARE"),  # with retrieve and closing more than the whole
        ("BREAKER_FAILURES", "0", "RAGMESH_ORCHESTRATOR_BREAKER_FAILURES"),
        ("HEDGE_SHARE", "1.1", "RAGMESH_ORCHESTRATOR_HEDGE_SHARE"),
        ("DEFAULT_COLLECTION", "No Such", "RAGMESH_ORCHESTRATOR_DEFAULT_COLLECTION"),
        ("BATCH_SIZE", "257", "RAGMESH_ORCHESTRATOR_BATCH_SIZE"),
        ("SOURCES", '{"HB": {"all": ["Wiki"]}}', "RAGMESH_ORCHESTRATOR_SOURCES=.*source HB: there is no"),
        ("SOURCES", '{"Wiki": {"colection": "w"}}', r"RAGMESH_ORCHESTRATOR_SOURCES\[Wiki\]\[colection\]=w: "),
        ("SOURCES", "{", "RAGMESH_ORCHESTRATOR_SOURCES=.*JSON"),
    ],
)
def test_a_wrong_value_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, told: str
) -> None:
    monkeypatch.setenv(f"RAGMESH_ORCHESTRATOR_{name}", value)
    with pytest.raises(SettingsError, match=told):
        load(OrchestratorSettings)
