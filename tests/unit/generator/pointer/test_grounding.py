"""Answers come back in the passages' letters."""

import pytest

from evenmesh_generator.pointer.grounding import Grounder
from evenmesh_generator.pointer.tokenization import PairTokenizer

PASSAGES = [
    "In 1854 the Crimean War brought Florence Nightingale to Scutari.",
    "Miss NIGHTINGALE, as “the lady with the lamp”, earned £4,500,000.50 (in today's money).",
]


def ground(tokenizer: PairTokenizer, answer: str) -> tuple[str, list[str]]:
    grounder = Grounder(PASSAGES, [tokenizer.text(p) for p in PASSAGES], tokenizer)
    pieces = [grounder.push(token) for token in tokenizer.ids(answer)]
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
