"""The two-round protocol, on what the paper tells of it."""

import pytest

from evenmesh_studies.conversations.protocol import MORE, SystemTurn, next_turn
from evenmesh_studies.conversations.topics import Topic

MOVIES = Topic("M002", question="Please list up sci-fi movies", format="movie title, IMDb URL")
REFUSED = (
    "I'm unable to help you with that, as I'm only a language model and don't have the necessary information"
)


def test_the_first_turn_asks_for_the_format() -> None:
    assert next_turn(MOVIES, []) == "Please list up sci-fi movies\nFormat: movie title, IMDb URL"
    assert next_turn(Topic("t", question="Which?"), []) == "Which?"


def test_a_useful_turn_is_met_with_more_and_another_one_with_the_format() -> None:
    assert next_turn(MOVIES, [SystemTurn("A: https://a", True)]) == MORE
    assert next_turn(MOVIES, [SystemTurn("A, B and C", False)]) == (
        'Adhere to the output format I specified:\n"Format: movie title, IMDb URL"'
    )
    assert next_turn(Topic("t", question="Which?"), [SystemTurn("A", False)]) == MORE


@pytest.mark.parametrize(
    "text", [REFUSED, "I'm a text-based AI, and that is outside of my capabilities.", "", " \n"]
)
def test_a_breakdown_ends_the_conversation(text: str) -> None:
    assert SystemTurn(text, False).breakdown
    assert next_turn(MOVIES, [SystemTurn(text, False)]) is None
    assert not SystemTurn(f"{text} https://a", True).breakdown


def test_two_rounds_are_all() -> None:
    assert next_turn(MOVIES, [SystemTurn("A: https://a", True), SystemTurn(REFUSED, False)]) is None


def test_turns_of_a_file_are_said_whatever_the_answers() -> None:
    topic = Topic("d", turns=("One?", "Two?"))
    assert next_turn(topic, []) == "One?"
    assert next_turn(topic, [SystemTurn(REFUSED, False)]) == "Two?"
    assert next_turn(topic, [SystemTurn(REFUSED, False), SystemTurn("", False)]) is None
