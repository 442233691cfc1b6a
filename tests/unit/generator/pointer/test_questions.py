"""What a message asks is found among what it says."""

import pytest

from evenmesh_generator.pointer.questions import asking, asking_first

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
        (STORY, ""),
        ("", ""),
    ],
)
def test_sentences_that_ask_are_found(text: str, asked: str) -> None:
    assert asking(text) == asked


def test_what_asks_comes_first_and_then_the_words_of_the_nearest_sentence() -> None:
    assert asking_first(f"{STORY} How many finished?") == (
        "How many finished? Fifteen runners competed first Boston Marathon 1897"
    )


@pytest.mark.parametrize("text", ["How many finished?", STORY, "Is it?  Is it not?"])
def test_a_text_that_only_asks_or_never_asks_stays(text: str) -> None:
    assert asking_first(text) == " ".join(text.split())
