"""Words of earlier turns behind a turn, and the turn repeated so that they do not outweigh it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_core.earlier_words import MAX_BYTES, balanced, words


def test_words_of_earlier_turns_follow_newest_first_without_function_words() -> None:
    earlier = ["Where does the Danube rise?", "And how long is it in Austria?"]
    assert words("Who owns it?", earlier) == "Who owns it? long Austria Danube rise"


def test_words_that_the_turn_has_are_not_said_twice() -> None:
    assert words("Is the DANUBE long?", ["How long is the Danube?", "The danube, the Danube"]) == (
        "Is the DANUBE long?"
    )


@pytest.mark.parametrize(
    ("least", "text"),
    [
        (1, "Who owns it?"),
        (2, "Who owns it? long"),
        (3, "Who owns it? long Austria"),
        (9, "Who owns it? long Austria Danube rise"),
        (None, "Who owns it? long Austria Danube rise"),
    ],
)
def test_no_more_words_are_added_than_the_turn_needs(least: int | None, text: str) -> None:
    earlier = ["Where does the Danube rise?", "And how long is it in Austria?"]
    assert words("Who owns it?", earlier, least=least) == text


def test_words_stop_before_they_are_too_long() -> None:
    text = words("x" * (MAX_BYTES - 10), ["Donaudampfschiff Rhein"])
    assert text == "x" * (MAX_BYTES - 10) + " Rhein" or text == "x" * (MAX_BYTES - 10)
    assert len(text.encode()) <= MAX_BYTES


@given(st.text(min_size=1, max_size=50), st.lists(st.text(max_size=50), max_size=5))
def test_the_turn_itself_always_comes_first_and_nothing_is_said_twice(turn: str, earlier: list[str]) -> None:
    text = words(turn, earlier)
    assert text.startswith(turn)
    added = text.removeprefix(turn).split()
    assert len({word.lower() for word in added}) == len(added)


@pytest.mark.parametrize(
    ("added", "times"), [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (6, 3), (20, 3)]
)
def test_the_turn_is_repeated_until_it_has_as_many_words_as_were_added(added: int, times: int) -> None:
    text = " ".join(["Who swims?", *(f"w{place}" for place in range(added))])
    assert balanced("Who swims?", text) == "Who swims? " * (times - 1) + text


def test_a_repeated_turn_is_no_longer_than_a_query_may_be() -> None:
    question = "x" * (MAX_BYTES // 2 - 4)
    text = words(question, ["Donau Rhein"])
    assert len(balanced(question, text).encode()) <= MAX_BYTES
    assert balanced("?", "? Rhein Donau") == "? ? Rhein Donau"
