"""Answers come back in the passages' letters, and are found where they stand."""

import pytest

from services.generator.pointer.grounding import Grounder, Place, find, places
from services.generator.pointer.tokenization import PairTokenizer

PASSAGES = [
    "In 1854 the Crimean War brought Florence Nightingale to Scutari.",
    "Miss NIGHTINGALE, as “the lady with the lamp”, earned £4,500,000.50 (in today's money).",
]


def ground(tokenizer: PairTokenizer, answer: str) -> tuple[str, list[str]]:
    grounder = Grounder(PASSAGES, [tokenizer.text(p) for p in PASSAGES], tokenizer)
    pieces = [grounder.feed(token) for token in tokenizer.ids(answer)]
    return grounder.text, pieces


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("florence nightingale", "Florence Nightingale"),
        ("miss nightingale", "Miss NIGHTINGALE"),
        ("the lady with the lamp", "the lady with the lamp"),
        ("£4,500,000.50", "£4,500,000.50"),
        ("today's money", "today's money"),
        ("scutari", "Scutari"),
    ],
)
def test_a_span_of_a_passage_is_that_span(tokenizer: PairTokenizer, written: str, read: str) -> None:
    text, pieces = ground(tokenizer, written)
    assert text == read
    assert "".join(pieces) == read


def test_words_from_two_places_are_joined_with_a_space(tokenizer: PairTokenizer) -> None:
    assert ground(tokenizer, "crimean lamp")[0] == "Crimean lamp"


def test_words_of_no_passage_are_written_as_they_come(tokenizer: PairTokenizer) -> None:
    assert ground(tokenizer, "florence unbelievably, yes")[0] == "Florence unbelievably, yes"


def test_no_tokens_make_no_text(tokenizer: PairTokenizer) -> None:
    assert ground(tokenizer, "") == ("", [])


@pytest.mark.parametrize(
    ("answer", "span"),
    [
        ("Florence Nightingale", "Florence Nightingale"),
        ("florence-nightingale!", "Florence Nightingale"),
        ("war", "War"),
        ("Night", None),  # not a whole word
        ("185", None),
        ("", None),
        ("…", None),
    ],
)
def test_find_looks_for_whole_words_by_letters_and_digits(answer: str, span: str | None) -> None:
    found = find(answer, PASSAGES[0])
    assert (PASSAGES[0][found[0] : found[1]] if found else None) == span


def test_find_passes_over_a_part_of_a_word_to_the_word_itself() -> None:
    text = "Nights are long; night falls."
    found = find("night", text)
    assert found == (text.index("night"), text.index("night") + 5)


def test_find_counts_in_the_original_where_case_folding_changes_the_length() -> None:
    text = "Die Straße heißt Maßweg."
    assert find("heisst", text) == (11, 16)


def test_places_are_the_passages_that_hold_the_answer() -> None:
    assert places("nightingale", PASSAGES) == (Place(0, 41, 52), Place(1, 5, 16))
    assert places("Scutari", PASSAGES) == (Place(0, 56, 63),)
    assert places("Sevastopol", PASSAGES) == ()
