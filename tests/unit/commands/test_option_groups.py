"""Options that commands share: a dataclass parameter stands for an option of each of its fields."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from evenmesh.commands.group import group
from evenmesh.commands.option_groups import with_groups


@dataclass(frozen=True)
class Pace:
    """Options of a group."""

    per_s: Annotated[float, typer.Option("--rate", help="Calls a second.")] = 2.0
    wait: bool = True


@with_groups
def ask(*, question: str, pace: Pace, loud: bool = False) -> None:
    """Ask."""
    typer.echo(f"{question} {pace.per_s:g} {pace.wait} {loud}")


def quiet_() -> None:
    """Say nothing."""


APP = group("calls", "Call.", ask, quiet_)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["why?"], "why? 2 True False"),
        (["why?", "--rate", "0.5", "--no-wait", "--loud"], "why? 0.5 False True"),
    ],
)
def test_the_fields_of_a_group_are_options_of_the_command(given: list[str], said: str) -> None:
    assert CliRunner().invoke(APP, ["ask", *given]).output.strip() == said


def test_a_value_of_another_type_is_refused() -> None:
    found = CliRunner().invoke(APP, ["ask", "why?", "--rate", "fast"])

    assert found.exit_code == 2
    assert "--rate" in found.output


def test_a_command_of_a_group_drops_its_final_underscore() -> None:
    assert CliRunner().invoke(APP, ["quiet"]).exit_code == 0
