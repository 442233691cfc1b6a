"""The page of settings has every process once, and every variable once."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_each_process_and_each_variable_is_there_once() -> None:
    spec = importlib.util.spec_from_file_location("settings_page", ROOT / "docs/site/settings_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page: str = module.page(ROOT)
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert {"Generator", "Reranker", "Retriever", "Trainer"} < set(headings)
    assert len(headings) == len(set(headings))
    for section in page.split("\n## ")[1:]:
        variables = re.findall(r"^\| `([A-Z<][A-Z0-9_<>]+)` \|", section, re.MULTILINE)
        assert variables
        assert len(variables) == len(set(variables)), section[:40]
