"""What a message asks is found among what it says."""

import pytest

from evenmesh_core.asking import asking, asking_alone, asking_first

STORY = "The first Boston Marathon was in 1897. Fifteen runners competed."


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        (f"{STORY} How many finished?", "How many finished?"),
        (f"What was it? {STORY} How many finished?", "What was it? How many finished?"),
        (f"How many finished? {STORY}", "How many finished?"),
        (f'{STORY} Who said "How many finished?"', 'Who said "How many finished?"'),
        ("Blood pressure: 120\nPulse: 80\n\nWhich is high?", "Which is high?"),
        ("He came. When did the\nmarathon begin?", "When did the marathon begin?"),
        ("Is Dr. Smith of St. Mary's the one who met J. R. Tolkien?",) * 2,
        ("What does the U.S. Army do in D.C. Then?",) * 2,
        ("Which came first, 3.5 or 4.0?",) * 2,
        ("Is Mt. Everest higher than No. 2 of Op. 64, and Roe v. Wade of Nov. 3?",) * 2,
        ("What is it? first Boston Marathon", "What is it?"),
        (STORY, ""),
        ("", ""),
    ],
)
def test_sentences_that_ask_are_found(text: str, asked: str) -> None:
    assert asking(text) == asked


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (
            f"{STORY} How many finished?",
            "How many finished? Fifteen runners competed first Boston",
        ),
        (
            f"{STORY} How many finished? They were sent to rest. What else?",
            "How many finished? What else? sent rest Fifteen runners competed",
        ),
        (
            f"How many finished? {STORY}",
            "How many finished? first Boston Marathon 1897 Fifteen",
        ),
        (
            f"Hello. {STORY} Who won it? Thanks! Be brief.",
            "Who won it? Fifteen runners competed first Boston",
        ),
        (
            f"{STORY} Where did the first black woman to win Boston run?",
            "Where did the first black woman to win Boston run?",
        ),
        ("I tow. Must I pay? a b c d e f g", "Must I pay? tow b c d e f g"),
        (f"{STORY} Why?", "Why? Fifteen runners competed first Boston Marathon 1897"),
    ],
    ids=["before", "between", "after", "both", "six words", "words of earlier turns", "few words that ask"],
)
def test_what_asks_comes_first_and_then_the_words_of_the_nearest_sentence(text: str, read: str) -> None:
    assert asking_first(text) == read


@pytest.mark.parametrize(
    "text",
    ["How many finished?", STORY, "Is it?  Is it not?", 'Who said "why?" and left?', ""],
)
def test_a_text_that_only_asks_or_never_asks_stays(text: str) -> None:
    assert asking_first(text) == text
    assert asking_alone(text) == text


@pytest.mark.parametrize(
    ("text", "alone"),
    [
        (f"{STORY} How many finished?", "How many finished?"),
        (f"What was it? {STORY} How many finished? They rested.", "What was it? How many finished?"),
        ("How many finished? first Boston Marathon", "How many finished? first Boston Marathon"),
        (f"{STORY} How many finished? first Marathon", "How many finished? first Marathon"),
        (f"{STORY} Why?", f"{STORY} Why?"),
        (f"{STORY} Why so? first Marathon", f"{STORY} Why so? first Marathon"),
    ],
)
def test_what_is_said_is_left_out_but_not_the_words_of_earlier_turns(text: str, alone: str) -> None:
    assert asking_alone(text) == alone
