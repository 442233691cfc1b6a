"""What `evenmesh chat` shows of a turn."""

import pytest

from evenmesh.commands.chat import _TurnView
from evenmesh.commands.screen import Screen
from evenmesh.types.events import Done

Output = pytest.CaptureFixture[str]


def test_a_seed_that_was_drawn_is_shown(capsys: Output) -> None:
    _TurnView(Screen(), as_json=False).show(Done("a", "r", {}, 1.0, seed=72499392))
    assert capsys.readouterr() == ("", "seed 72499392\n")


def test_without_draws_there_is_no_seed_to_show(capsys: Output) -> None:
    _TurnView(Screen(), as_json=False).show(Done("a", "r", {}, 1.0))
    assert capsys.readouterr() == ("", "")
