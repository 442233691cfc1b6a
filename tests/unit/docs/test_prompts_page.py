"""What docs/guides/prompts.md says of the templates is so: names, what they hold, defaults, and how to write one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evenmesh_generator.domain import Passage, Turn
from evenmesh_generator.engine import BACKGROUND_TEMPLATE, COMPRESSION_TEMPLATE
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_reranker.settings import RerankerSettings

PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "prompts.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line[:1] == "|"
]
TEMPLATES = {row[0].strip("`"): row[-2:] for row in ROWS if row[-1] in ("yes", "no")}
BLOCKS = dict(re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def library() -> TemplateLibrary:
    return TemplateLibrary.bundled()


def test_every_template_is_listed_with_what_it_holds(library: TemplateLibrary) -> None:
    shown = {True: "yes", False: "no"}
    assert {
        name: [template.scope.value, shown[template.shows_turns]]
        for name, template in ((name, library.get(name)) for name in library.names if ".v" not in name)
    } == TEMPLATES


def test_defaults(library: TemplateLibrary) -> None:
    defaults = {row[0]: [cell.strip("`") for cell in row[1:]] for row in ROWS if row[0] and len(row) == 4}
    assert set(defaults["a document that the model writes itself"]) == {BACKGROUND_TEMPLATE}
    assert set(defaults["a summary of the passages"]) == {COMPRESSION_TEMPLATE}
    for purpose in ("all passages in the prompt", "Fusion-in-Decoder", "no passages", "judging one passage"):
        assert all(library.get(name) for name in defaults[purpose] if name)
    assert "EVENMESH_RERANKER_RANKRAG_TEMPLATE" in PAGE
    assert "rankrag_template" in RerankerSettings.model_fields


def test_the_template_of_the_page_renders_what_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "haiku.v1.txt").write_text(BLOCKS["jinja"], encoding="utf-8")
    passages = [
        Passage("a", "Chains", "Oil them every 200 kilometres."),
        Passage("b", "Saddles", "Wipe them."),
    ]
    turns = [Turn("And brakes?", "Adjust them.")]
    template = TemplateLibrary.with_folder(tmp_path).get("haiku")
    rendered = template.render("How often do I oil a chain?", passages, turns)
    assert rendered == BLOCKS["text"].removesuffix("\n")
