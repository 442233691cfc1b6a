"""The command line has what is installed, and says of the rest which distribution brings it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import typer

from evenmesh.commands import main
from evenmesh.commands.failure import USAGE
from tests.support.entry_points import bring


def installed(monkeypatch: pytest.MonkeyPatch, *commands: Callable[[], object] | typer.Typer) -> None:
    """Have the entry points bring these commands and no others."""
    bring(monkeypatch, *([lambda: lambda: list(commands)] if commands else []))


def test_what_is_not_installed_is_not_in_the_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(monkeypatch)
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert "\n  ask " in listed
    assert "\n  up " not in listed
    assert "\n  audit " not in listed


@pytest.mark.parametrize(
    ("words", "room"),
    [
        (["up", "--detach"], "mesh"),
        (["audit"], "studies"),
        (["train", "rankrag"], "training"),
        (["bench"], "studies"),
    ],
)
def test_naming_it_says_what_brings_it(
    words: list[str], room: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(monkeypatch)
    assert main(words) == USAGE
    assert capsys.readouterr().err.splitlines() == [
        f"evenmesh: `evenmesh {words[0]}` is in evenmesh-{room}, which is not installed: "
        "in a checkout, pip install -c constraints.txt -r workspace.txt"
    ]


def test_a_distribution_adds_its_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def up() -> None:
        """Bring something up."""
        print("it is up")  # noqa: T201

    installed(monkeypatch, up)
    assert main(["up"]) == 0
    assert capsys.readouterr().out == "it is up\n"


def test_what_no_distribution_has_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(monkeypatch)
    assert main(["fly"]) == USAGE
    assert "No such command 'fly'" in capsys.readouterr().err
