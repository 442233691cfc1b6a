"""Cutting text into passages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from evenmesh_retriever.backends.web.chunks import chunks


def _sentence(words: int, name: str) -> str:
    return " ".join([name] * words) + "."


def test_parts_end_with_the_sentence_nearest_to_the_size() -> None:
    # 6 + 3 = 9 words are nearer to 10 than 6 + 3 + 6.
    text = " ".join([_sentence(6, "a"), _sentence(3, "b"), _sentence(6, "c")])
    assert chunks(text, 10) == [f"{_sentence(6, 'a')} {_sentence(3, 'b')}", _sentence(6, "c")]
    # 6 + 6 = 12 words are nearer to 10 than 6.
    text = " ".join([_sentence(6, "a"), _sentence(6, "b"), _sentence(6, "c")])
    assert chunks(text, 10) == [f"{_sentence(6, 'a')} {_sentence(6, 'b')}", _sentence(6, "c")]


def test_a_long_sentence_is_cut() -> None:
    assert chunks(" ".join(str(i) for i in range(25)), 10) == [
        " ".join(map(str, range(10))),
        " ".join(map(str, range(10, 20))),
        " ".join(map(str, range(20, 25))),
    ]


def test_lines_end_sentences() -> None:
    assert chunks("one two three\nfour five six\n\nseven", 3) == ["one two three", "four five six", "seven"]


def test_nothing() -> None:
    assert chunks(" \n\t ", 100) == []


@given(st.lists(st.from_regex(r"[a-z]{1,3}[.!?]?", fullmatch=True)), st.integers(1, 20))
def test_every_word_is_in_one_part_and_no_part_is_much_too_long(words: list[str], size: int) -> None:
    parts = chunks(" ".join(words), size)
    assert " ".join(parts).split() == words
    assert all(1 <= len(part.split()) < 2 * size for part in parts)
