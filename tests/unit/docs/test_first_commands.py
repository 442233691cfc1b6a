"""What the first pages tell a newcomer to type is accepted as it is printed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from evenmesh.commands import main
from tests.support.pages import blocks
from tests.support.scripted import ScriptedMesh

ROOT = Path(__file__).parents[3]
PAGES = ("README.md", "docs/start/first-steps.md", "docs/guides/retrievers.md")
COMMANDS = sorted(
    {
        line.partition("  #")[0].strip()
        for page in PAGES
        for block in blocks((ROOT / page).read_text(encoding="utf-8"), "sh")
        for line in block.splitlines()
        if line.startswith(("evenmesh ask ", "evenmesh retrieve "))
    }
)


def test_there_are_some() -> None:
    assert any(command.startswith("evenmesh retrieve") for command in COMMANDS)
    assert len(COMMANDS) > 4


@pytest.mark.parametrize("command", COMMANDS)
def test_it_is_accepted(command: str, at_home: ScriptedMesh) -> None:
    assert main(shlex.split(command)[1:]) == 0
