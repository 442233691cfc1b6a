"""The commands and columns of docs/guides/research-tools.md are those there are."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from evenmesh.commands import application
from evenmesh_documents.data_sets.address import DataSetAddress, is_data_set
from tests.support.pages import blocks

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "research-tools.md"
TEXT = PAGE.read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line)[1:]
    for block in blocks(TEXT, "sh")
    for line in block.splitlines()
    if line.startswith("evenmesh ")
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_is_accepted(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = typer.main.get_command(application())
    while hasattr(command, "commands"):
        name, *words = words
        command = command.commands[name]
    assert command.make_context("evenmesh", list(words)).params


def test_its_data_sets_are_addresses() -> None:
    named = {word for words in COMMANDS for word in words if is_data_set(word)}
    assert len(named) > 4
    assert {DataSetAddress.parse(one).kind for one in named} == {"ir_datasets", "hf"}


def test_its_options_of_columns_are_those_there_are() -> None:
    (item,) = re.findall(r"^- `hf:` takes.*$", TEXT, re.MULTILINE)
    names = re.findall(r"`([a-z]+)=`", item + TEXT.partition(item)[2].partition("\n- ")[0])
    assert len(names) > 6
    for name in names:
        assert DataSetAddress.parse(f"hf:x?{name}=y")
