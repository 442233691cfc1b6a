"""What a message asks is found among what it says."""

import pytest

from evenmesh_core.asking import asking, asking_alone, asking_first, searched
from evenmesh_core.earlier_words import MAX_BYTES, balanced, words

STORY = "The first Boston Marathon was in 1897. Fifteen runners competed."
SAID = "first Boston Marathon 1897 Fifteen competed"


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


@pytest.mark.parametrize(
    ("question", "text"),
    [
        # Six words are beside four: three times. Ten would take five; four is the most.
        (f"{STORY} How many runners finished?", "How many runners finished? " * 3 + SAID),
        (
            f"{STORY} It rained cats, dogs and frogs. How many runners finished?",
            "How many runners finished? " * 4 + f"{SAID} rained cats dogs frogs",
        ),
        ("It rains. How many runners finished?", "How many runners finished? rains"),
        (
            "It rains in Boston, Massachusetts. How many runners finished?",
            "How many runners finished? How many runners finished? rains Boston Massachusetts",
        ),
        # What asks has one content word, or none: the rest may be what is looked for.
        (f"{STORY} How many finished?", f"{STORY} How many finished?"),
        ("How many finished the race?", "How many finished the race?"),
    ],
    ids=["three times", "at most four times", "once", "twice", "one content word", "it only asks"],
)
def test_a_retriever_receives_what_asks_until_it_has_twice_the_words_of_the_others(
    question: str, text: str
) -> None:
    assert searched(question, question) == text


def test_words_of_earlier_turns_follow_once_and_do_not_outweigh_the_question() -> None:
    turn = "It rains. How many runners finished?"
    earlier = ["Who oiled which zipper, with resin, in Quillgate, Saddlebrook, Fernhollow and Mossback?"]
    asks = "How many runners finished? rains"
    found = searched(turn, words(turn, earlier))
    assert found == f"{asks} {asks} oiled zipper resin Quillgate Saddlebrook Fernhollow Mossback"
    assert searched("And then?", "And then? oiled zipper resin") == balanced(
        "And then?", "And then? oiled zipper resin"
    )


@pytest.mark.parametrize("said", [10, 4000, MAX_BYTES - 40])
def test_a_text_to_search_for_is_never_too_long(said: int) -> None:
    question = f"{'x' * said}. How many runners finished?"
    text = words(question, [" ".join(f"w{place}" for place in range(2000))])
    found = searched(question, text)
    assert len(found.encode()) <= MAX_BYTES
    assert found.split()[-1] == text.split()[-1]
