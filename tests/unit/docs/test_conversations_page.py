"""What docs/guides/conversations.md says of settings, targets and commands is so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import typer

from evenmesh import Client
from evenmesh.commands import application
from evenmesh.commands.targets import read_target
from evenmesh.types.passage import Passage
from evenmesh_orchestrator.settings import OrchestratorSettings

PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "conversations.md").read_text(encoding="utf-8")
SETTINGS = dict(re.findall(r"^\| `EVENMESH_ORCHESTRATOR_(\w+)` \| ([\d,]+) \|", PAGE, re.MULTILINE))
SPECS = [
    spec
    for row in re.findall(r"^\| (`.*`) \| (?:the collection|these|ordered)", PAGE, re.MULTILINE)
    for spec in re.findall(r"`([^`]+)`", row)
]


class Corpus:
    """A client of a collection of two groups."""

    def passages(self, name: str) -> Iterator[Passage]:
        yield from (Passage(group, name, "", {"provider": group}) for group in "ab")


def test_the_settings_have_the_defaults_of_the_page() -> None:
    assert len(SETTINGS) == 6
    for name, said in SETTINGS.items():
        assert OrchestratorSettings.model_fields[name.lower()].default == float(said.replace(",", "")), name


@pytest.mark.parametrize("spec", SPECS)
def test_the_targets_of_the_page_can_be_read(spec: str) -> None:
    assert len(read_target(spec, cast(Client, Corpus()), "c").groups) >= 2


def test_the_page_has_targets() -> None:
    assert len(SPECS) == 5


@pytest.mark.parametrize("line", re.findall(r"evenmesh ((?:chat|harvest) [^\n#|]+)", PAGE))
def test_the_options_of_its_commands_are_there(line: str) -> None:
    name, *words = line.split()
    commands = typer.main.get_command(application()).commands  # type: ignore[attr-defined]
    known = {option for parameter in commands[name].params for option in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= known
