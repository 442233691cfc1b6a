"""The page of settings has every process once, and every variable once."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def page() -> str:
    spec = importlib.util.spec_from_file_location("settings_page", ROOT / "docs/site/settings_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: str = module.page(ROOT)
    return made


def test_each_process_and_each_variable_is_there_once() -> None:
    text = page()
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert {"Generator", "Reranker", "Retriever", "Trainer"} < set(headings)
    assert len(headings) == len(set(headings))
    for section in text.split("\n## ")[1:]:
        variables = re.findall(r"^\| (`EVENMESH_.+?`) \|", section, re.MULTILINE)
        assert variables, section[:40]
        assert len(variables) == len(set(variables)), section[:40]


def test_every_variable_of_clients_and_commands_is_read() -> None:
    section = page().split("\n## Clients and commands\n")[1].split("\n## ")[0]
    variables = re.findall(r"`EVENMESH_([A-Z_<>]+)`", section)
    assert len(variables) > 10
    rooms = ("clients/python", "libs", "mesh", "studies", "training")
    code = "\n".join(file.read_text("utf-8") for room in rooms for file in (ROOT / room).rglob("*.py"))
    code = code.replace("CLIENT_{service.upper()}_TARGET", "CLIENT_<SERVICE>_TARGET")
    # TLS and credentials are read by the names after the prefix.
    assert [name for name in variables if f'{name}"' not in code] == []
