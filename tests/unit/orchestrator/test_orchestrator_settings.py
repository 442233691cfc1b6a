"""Settings of the orchestrator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evenmesh_kit.settings import SettingsError, load
from evenmesh_orchestrator.__main__ import conversation_store, pipeline_config
from evenmesh_orchestrator.conversations.memory import MemoryConversationStore
from evenmesh_orchestrator.conversations.sql.store import SqlConversationStore
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


def test_calls_to_a_service_fit_a_connection() -> None:
    """What gRPC lets wait, because a connection takes no more, has no turns of tenants."""
    settings = load(OrchestratorSettings)
    assert settings.upstream_calls < settings.max_connection_streams


def test_nothing_is_called_twice_unless_asked_for() -> None:
    settings = load(OrchestratorSettings)
    assert (settings.hedge_retrieve_s, settings.hedge_rerank_s) == (0.0, 0.0)


def test_conversations_are_in_memory_unless_a_database_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert isinstance(conversation_store(load(OrchestratorSettings)), MemoryConversationStore)
    monkeypatch.setenv("EVENMESH_ORCHESTRATOR_CONVERSATIONS_URL", f"sqlite:///{tmp_path}/talks.db")
    settings = load(OrchestratorSettings)
    assert isinstance(conversation_store(settings), SqlConversationStore)
    assert "talks" not in repr(settings)


def test_who_names_no_database_imports_nothing_for_it() -> None:
    program = (
        "import sys; from evenmesh_orchestrator.__main__ import conversation_store, OrchestratorSettings;"
        "conversation_store(OrchestratorSettings());"
        "print(sorted({'sqlalchemy', 'alembic', 'aiosqlite', 'asyncpg'} & set(sys.modules)))"
    )
    environment = {
        name: value for name, value in os.environ.items() if name != "EVENMESH_ORCHESTRATOR_CONVERSATIONS_URL"
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


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
        (
            "CONVERSATIONS_URL",
            "mysql://me:PW@db/talks",
            "CONVERSATIONS_URL=…: must be a sqlite or postgresql URL",
        ),
        ("CONVERSATIONS_URL", "sqlite://", "CONVERSATIONS_URL=…: must name a file"),
        ("CONVERSATION_LEASE_S", "0.5", "EVENMESH_ORCHESTRATOR_CONVERSATION_LEASE_S"),
    ],
)
def test_a_wrong_value_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(f"EVENMESH_ORCHESTRATOR_{name}", value)
    with pytest.raises(SettingsError, match=message):
        load(OrchestratorSettings)
