"""An answer ends before the first of the texts that stop it."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_generator.domain import Span
from evenmesh_generator.runtime.prompts.stopped_transcript import StoppedTranscript
from evenmesh_generator.stopped_text import StoppedText

SMALL = st.text("ab\n", max_size=4)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3)


@given(st.lists(SMALL, max_size=12), STOPS)
def test_the_pieces_join_to_the_text_before_the_first_stop(pieces: list[str], stop: list[str]) -> None:
    whole = "".join(pieces)
    ends = [whole.find(one) for one in stop if one in whole]
    stopped = StoppedText(stop)
    said = [stopped.add(piece) for piece in pieces]
    said.append(stopped.finish())
    assert "".join(said) == stopped.text == (whole[: min(ends)] if ends else whole)
    assert stopped.ended == bool(ends)


@given(st.lists(SMALL, max_size=12), STOPS)
def test_no_more_is_held_back_than_may_be_the_beginning_of_a_stop(pieces: list[str], stop: list[str]) -> None:
    stopped = StoppedText(stop)
    came = ""
    for piece in pieces:
        stopped.add(piece)
        came += piece
        held = "" if stopped.ended else came[len(stopped.text) :]
        assert not held or any(one.startswith(held) for one in stop)


class Letters:
    """A transcript whose tokens are letters of a passage, from the third on."""

    ended = False

    def __init__(self) -> None:
        self.text = ""

    @property
    def span(self) -> Span | None:
        return Span(1, 2, 2 + len(self.text))

    def push(self, token: int) -> str:
        self.text += chr(token)
        return chr(token)

    def finish(self) -> str:
        return ""

    def confidence(self, log_probabilities: Sequence[float]) -> float | None:
        return 0.5


@pytest.mark.parametrize(
    ("stop", "text", "span", "confidence"),
    [
        ("\n", "one", Span(1, 2, 5), None),
        ("one", "", None, None),
        ("none", "one\ntwo", Span(1, 2, 9), 0.5),
    ],
)
def test_a_stopped_answer_stands_where_it_begins_and_has_no_confidence(
    stop: str, text: str, span: Span | None, confidence: float | None
) -> None:
    stopped = StoppedTranscript(Letters(), [stop])
    said = [stopped.push(ord(letter)) for letter in "one\ntwo"]
    assert "".join([*said, stopped.finish()]) == stopped.text == text
    assert (stopped.span, stopped.confidence([-1.0])) == (span, confidence)
    assert stopped.ended == (re.search(stop, "one\ntwo") is not None)
