"""Texts that say nearly the same."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from evenmesh_core.near_duplicates import near_duplicates

WORDS = [f"word{number}" for number in range(5_000)]


def _text(seed: int, words: int = 80) -> list[str]:
    return random.Random(seed).sample(WORDS, words)


def test_copies_with_other_case_and_white_space_are_the_same():
    assert near_duplicates(["A river runs.", "other words", " a  RIVER\nruns. "]).tolist() == [0, 1, 0]


def test_a_text_with_few_other_words_is_nearly_the_same():
    text = _text(1)
    changed = [*text[:70], "quite", *text[71:]]  # 3 runs of 78 differ on both sides: Jaccard 75 / 81
    assert near_duplicates([" ".join(text), " ".join(_text(2)), " ".join(changed)]).tolist() == [0, 1, 0]


def test_a_text_that_shares_half_of_its_words_is_another():
    text, other = _text(1), _text(2)
    half = [*text[:40], *other[40:]]  # 38 runs of 78 are shared: Jaccard 38 / 118
    assert near_duplicates([" ".join(text), " ".join(half)]).tolist() == [0, 1]


def test_texts_without_words_are_like_no_other():
    assert near_duplicates(["", "a b", "", " "]).tolist() == [0, 1, 2, 3]
    assert near_duplicates([]).tolist() == []


def test_short_texts_are_compared_as_a_whole():
    assert near_duplicates(["Rhine", "rhine", "Elbe", "the Rhine"]).tolist() == [0, 0, 1, 2]


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.lists(st.sampled_from(["a b c d", "A  b c d", "e f g h", "i", "I"]), min_size=1, max_size=12))
def test_equal_texts_have_equal_numbers_and_others_different_ones(texts):
    numbers = near_duplicates(texts).tolist()
    said = [" ".join(text.casefold().split()) for text in texts]
    for one in range(len(texts)):
        for other in range(one):
            assert (numbers[one] == numbers[other]) == (said[one] == said[other])
