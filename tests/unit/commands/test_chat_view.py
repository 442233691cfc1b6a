"""What `evenmesh chat` shows of a turn."""

import pytest

from evenmesh.commands.chat import _TurnView
from evenmesh.commands.screen import Screen
from evenmesh.types.events import Answer, Cost, Done

Output = pytest.CaptureFixture[str]


def test_a_seed_that_was_drawn_is_shown(capsys: Output) -> None:
    _TurnView(Screen(), as_json=False).show(Done("a", "r", {}, 1.0, seed=72499392))
    assert capsys.readouterr() == ("", "seed 72499392\n")


def test_without_draws_there_is_no_seed_to_show(capsys: Output) -> None:
    _TurnView(Screen(), as_json=False).show(Done("a", "r", {}, 1.0))
    assert capsys.readouterr() == ("", "")


def test_what_the_model_did_not_read_is_said(capsys: Output) -> None:
    answer = Answer(
        text="Oil.",
        samples=(0,),
        citations=(),
        finish_reason="stop",
        prompt_tokens=90,
        completion_tokens=4,
        log_probability=-0.5,
        model="m",
        model_version="v",
        engine="e",
        dropped_passages=1,
        cut_passages=0,
        dropped_turns=2,
        cut_question=True,
        cost=Cost(0.5, 4, 9, 60, 30, 2),
    )
    _TurnView(Screen(), as_json=False).show(answer)
    assert capsys.readouterr().err.splitlines() == [
        "! the model read of the question what ends with a question mark, and a few words",
        "! too long for the model: 1 passage left out",
        "! the model did not read 2 earlier turns",
    ]
