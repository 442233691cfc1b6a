"""``evenmesh ask`` shows the answer whose sources it names."""

from __future__ import annotations

import pytest

from evenmesh.commands.screen import Screen
from evenmesh.commands.views import AskView
from evenmesh.types.events import Answer, Citation, Cost, Delta, Failed


def answer(text: str, sample: int) -> Answer:
    cited = (Citation(f"p{sample}", "", 1, None, None),)
    return Answer(text, (sample,), cited, "stop", 1, 1, 0.0, "m", "v", "e", 0, 0, 0, Cost(0, 0, 0, 0, 0, 1))


def shown(capsys: pytest.CaptureFixture[str], *events: Delta | Answer | Failed) -> list[str]:
    with AskView(Screen()) as view:
        for event in events:
            view.show(event)
        view.finish("How often?")
    return capsys.readouterr().out.splitlines()


def test_an_answer_that_broke_off_is_followed_by_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    failed = Failed((0,), "UNAVAILABLE", "UPSTREAM_UNAVAILABLE", "the generator left", "")
    lines = shown(capsys, Delta("every "), failed, answer("often", 1))
    assert lines[:4] == ["every ", "often", "", "  [1] p1  (unknown)"]
    assert "! no answer for 1 sample: the generator left (UPSTREAM_UNAVAILABLE)" in lines


def test_a_later_answer_is_not_shown_in_the_place_of_a_whole_first_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failed = Failed((1,), "UNAVAILABLE", "UPSTREAM_UNAVAILABLE", "the generator left", "")
    lines = shown(capsys, Delta("every "), Delta("day"), answer("every day", 0), failed, answer("often", 2))
    assert lines[:3] == ["every day", "", "  [1] p0  (unknown)"]
