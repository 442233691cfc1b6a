"""Chunks of documents, their 4-gram labels, and passages without their answer."""

from hypothesis import given
from hypothesis import strategies as st

from evenmesh_training.rankrag.data.chunks import Label, chunks, label, without_answer


def test_chunks_are_of_so_many_words_and_say_where_they_begin() -> None:
    text = "  one two  three four five"
    assert list(chunks(text, 2)) == [(2, "one two"), (11, "three four"), (22, "five")]


@given(st.text(alphabet="ab \n\t", max_size=60), st.integers(1, 7))
def test_chunks_hold_every_word_once(text: str, words: int) -> None:
    found = list(chunks(text, words))
    assert [word for _, chunk in found for word in chunk.split()] == text.split()
    assert all(text[begin : begin + len(chunk)] == chunk for begin, chunk in found)


def test_labels_are_strict_at_both_thresholds() -> None:
    answer = "a b c d e"  # 4-grams: a b c d, b c d e
    assert label("x a b c d x", answer, above=0.5, below=0.1) is Label.DROPPED  # 1 / 2, not above 0.5
    assert label("x a b c d x", answer, above=0.49, below=0.1) is Label.RELEVANT
    assert label("a b c d e", answer, above=0.5, below=0.1) is Label.RELEVANT  # 2 / 2
    assert label("a b c x", answer, above=0.5, below=0.1) is Label.IRRELEVANT  # 0 / 2
    assert label("a b c x", answer, above=0.5, below=0.0) is Label.DROPPED  # 0, not below 0


def test_an_answer_of_three_words_labels_nothing() -> None:
    assert label("a b c", "a b c", above=0.5, below=0.1) is Label.DROPPED


def test_sentences_with_the_answer_are_cut_out() -> None:
    text = "The town is old and lies high. Its mayor is Anna. The market opens early every Monday morning."
    left = "The town is old and lies high. The market opens early every Monday morning."
    assert without_answer(text, ["anna"]) == left


def test_what_cannot_be_cut_is_not() -> None:
    assert without_answer("Its mayor is Anna. So it is.", ["Anna"]) is None  # three words left
    assert without_answer("Nothing here is about the person who was asked for.", ["Anna"]) is None
    # the answer spans two sentences, so that no sentence holds it
    assert without_answer("They meet Dr. Who at the gate of the old town hall today.", ["Dr. Who"]) is None
