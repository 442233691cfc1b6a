"""What docs/guides/expressions.md writes can be read: its expressions, settings, errors and filters."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from evenmesh.commands.filters import filter_of
from evenmesh_orchestrator.expressions.parser import ExpressionError, parse
from evenmesh_orchestrator.expressions.sources import SourceCatalogue, SourceDefinition
from evenmesh_retriever.backends.web.settings import WebSourceSettings

PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "expressions.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SOURCES, WEB = (json.loads(text) for kind, text in BLOCKS if kind == "json")
CATALOGUE = SourceCatalogue({name: SourceDefinition(**one) for name, one in SOURCES.items()})
(EXPRESSIONS,) = (
    [line.split("  ")[0] for line in text.splitlines()] for kind, text in BLOCKS if kind == "text"
)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_can_be_run_with_the_sources_of_the_page(expression: str) -> None:
    assert str(parse(expression)) == expression
    assert CATALOGUE.read(expression).max_passages <= 100


def test_hb_is_what_the_page_says_it_stands_for() -> None:
    named, written = CATALOGUE.read("HB@RR@10"), CATALOGUE.read("(SE&Wiki@20&PK)@RR@10")
    assert set(named.places.values()) == set(written.places.values())
    assert named.uses_knowledge


def test_errors_are_what_is_said() -> None:
    for text, reported in (
        ("SE@2@RR", "column 5: expected &, @CP or the end, got '@RR'"),
        ("SE@10@RR", "column 6: expected &, @CP or the end, got '@RR'"),
        ("Wiki@5@RR", "column 7: expected &, @CP or the end, got '@RR'"),
        ("SE@2&Wikipedia@1", "column 6: there is no source 'Wikipedia'; there are HB, SE, Wiki, PK, ReFree"),
    ):
        with pytest.raises(ExpressionError) as caught:
            CATALOGUE.read(text)
        assert str(caught.value) == reported
    assert "expression: column 7: expected &, @CP or the end, got '@RR'" in PAGE
    assert reported in PAGE


def test_web_sources_and_their_defaults() -> None:
    settings = WebSourceSettings(**WEB["searx"])
    assert (settings.results, settings.words, settings.passages_per_page) == (4, 100, 25)
    assert (settings.timeout_s, settings.page_timeout_s, settings.page_bytes) == (10, 5, 2**20)
    assert (settings.redirects, settings.snippets, settings.allow_private) == (3, True, False)
    table = set(re.findall(r"^\| (`.*?`) \|", PAGE, re.MULTILINE))
    named = {name for row in table for name in re.findall(r"`(\w+)`", row)}
    assert set(WebSourceSettings.model_fields) <= named


def test_filters_of_the_command_line() -> None:
    (line,) = (line for line in PAGE.splitlines() if line.startswith("evenmesh ask --filter"))
    assert set(filter_of(re.findall(r"--filter (\S+)", line)) or ()) == {"provider", "date", "year"}
