"""Every entry of docs/references.bib can be found by its reader, and its page has no LaTeX left."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
BIBLIOGRAPHY = ROOT / "docs/references.bib"
ENTRIES = re.findall(r"^@\w+\{(\w+),(.*?)(?=^@|\Z)", BIBLIOGRAPHY.read_text(encoding="utf-8"), re.M | re.S)


def test_every_entry_has_an_identifier_or_says_that_it_has_none() -> None:
    assert ENTRIES
    found = re.compile(r"\b(?:doi|eprint|url) = \{[^}]+\}|note = \{It has no DOI")
    assert [key for key, fields in ENTRIES if not found.search(fields)] == []


def test_no_identifier_names_two_entries() -> None:
    ids = re.findall(r"\b(?:doi|eprint) = \{([^}]+)\}", BIBLIOGRAPHY.read_text(encoding="utf-8"))
    assert len(ids) == len(set(ids))


def test_the_page_has_every_entry_and_no_latex() -> None:
    spec = importlib.util.spec_from_file_location("references_page", ROOT / "docs/site/references_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page: str = module.page(BIBLIOGRAPHY)
    assert [key for key, _ in ENTRIES if f"{{#{key.lower()}}}" not in page] == []
    assert [line for line in page.splitlines() if "\\" in line] == []
