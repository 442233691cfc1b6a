"""What docs/guides/servers/ exports are settings that there are, with values that the services take."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from evenmesh_generator.settings import GeneratorSettings
from evenmesh_kit.settings import load
from evenmesh_orchestrator.settings import OrchestratorSettings
from evenmesh_reranker.settings import RerankerSettings
from evenmesh_retriever.settings import RetrieverSettings

FOLDER = Path(__file__).parents[3] / "docs" / "guides" / "servers"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md"))
SERVICES: dict[str, type[BaseSettings]] = {
    "GENERATOR": GeneratorSettings,
    "RETRIEVER": RetrieverSettings,
    "RERANKER": RerankerSettings,
    "ORCHESTRATOR": OrchestratorSettings,
}


def exported(block: str) -> dict[str, str]:
    """The variables that a block of shell exports."""
    words = [shlex.split(line, comments=True) for line in block.splitlines() if "export " in line]
    return dict(word.split("=", 1) for line in words for word in line[1:])


def blocks(page: str) -> list[str]:
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^ *```sh\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)


def test_there_is_a_page_for_each_server() -> None:
    assert PAGES == ["nim", "ollama", "tei", "tgi", "triton", "vllm"]


@pytest.mark.parametrize("page", PAGES)
def test_every_named_variable_is_a_setting(page: str) -> None:
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    named = set(re.findall(r"EVENMESH_(?!TEST_)([A-Z]+)_([A-Z_0-9]+)", text))
    assert named
    for service, name in named:
        assert name.lower() in SERVICES[service].model_fields, name


@pytest.mark.parametrize("page", PAGES)
def test_the_services_take_what_is_exported(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0
    for block in blocks(page):
        given = exported(block)
        taken += len(given)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        if any("_REMOTE_" in name and "GENERATOR" in name for name in given):
            monkeypatch.setenv("EVENMESH_GENERATOR_ENGINE", "openai")  # as `evenmesh up --generator openai`
        if given and not all(name.endswith("_URLS") for name in given):
            for service in SERVICES.values():
                load(service)
    assert taken > 2


@pytest.mark.parametrize("page", PAGES)
def test_each_goes_from_a_server_to_an_answer_and_says_what_was_run(page: str) -> None:
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    for word in ("from nothing to an answer", "evenmesh up", "evenmesh ingest", "evenmesh ask"):
        assert word in text, word
    assert re.search(r"[Ww]e (ran|have\s+not\s+run)", text)
