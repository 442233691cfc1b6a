"""The page of load tests: its commands are those there are, and its measured parts can be filled."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from evenmesh_studies.commands.load import bench
from evenmesh_studies.load.reporting.report import CAPTIONS

DOCS = Path(__file__).parents[3] / "docs" / "operate"
PARTS = {
    "bench-measured.md": ("ramp", "rerank-generate", "depth", "concurrency", "front"),
    "capacity.md": ("capacity",),
}


@pytest.mark.parametrize("page", ["bench.md", "capacity.md"])
def test_its_commands_are_those_there_are(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    commands = [
        shlex.split(line, comments=True)[2:]
        for line in text.splitlines()
        if line.startswith("evenmesh bench ")
    ]
    assert commands
    known = typer.main.get_command(bench()).commands  # type: ignore[attr-defined]
    for name, *words in commands:
        assert known[name].make_context(name, list(words)).params


@pytest.mark.parametrize("page", sorted(PARTS))
def test_its_measured_parts_can_be_filled(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    for name in PARTS[page]:
        assert len(re.findall(rf"^<!-- /?{name} -->$", text, flags=re.MULTILINE)) == 2


def test_the_pictures_it_names_are_made() -> None:
    named = set(re.findall(r"`(\w+)\.png`", (DOCS / "bench.md").read_text(encoding="utf-8")))
    assert named == set(CAPTIONS)
