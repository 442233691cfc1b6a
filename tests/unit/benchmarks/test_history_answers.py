"""What the bundled model reads of earlier turns: questions and rows of the table."""

from __future__ import annotations

import numpy as np

from benchmarks.history_answers import ALONE, DEFAULT, contextual, row, split
from benchmarks.history_turns import PARTS, Turn


def test_words_of_as_many_turns_stand_behind_the_question() -> None:
    turn = Turn("c", "How often?", ["zipper", "oil chain"], ["p"])
    assert contextual(turn, 0) == ""
    assert contextual(turn, 1) == "How often? oil chain"
    assert contextual(turn, 10) == "How often? oil chain zipper"
    assert contextual(Turn("c", "zipper", ["zipper"], ["p"]), 10) == "", "nothing is added"


def test_a_document_is_split_into_passages_of_about_a_hundred_words() -> None:
    words = [f"w{place}" for place in range(250)]
    parts = split({"id": "d", "title": "t", "text": " ".join(words)})
    assert [(one.id, one.title, len(one.text.split())) for one in parts] == [
        ("d-0", "t", 125),
        ("d-1", "t", 125),
    ]
    assert " ".join(one.text for one in parts).split() == words
    assert [one.text for one in split({"id": "d", "text": "one"})] == ["one"]


def test_a_row_has_means_and_what_words_gain() -> None:
    alone, words = np.zeros(40), np.where(np.arange(40) < 20, 0.5, 0.0)
    cells = row(PARTS[0], {ALONE: alone, "1 turn": alone, "3": words, DEFAULT: words})
    assert (cells["conversations"], cells[ALONE], cells[DEFAULT]) == ("40", "0.000", "0.250")
    assert cells["`words` beside alone"].startswith("+0.250 [+0.")
