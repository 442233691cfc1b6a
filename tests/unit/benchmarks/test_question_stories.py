"""Questions among other sentences, as their table takes them, and its rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.question_stories import AS_IT_STANDS, ASKS_FIRST, COURTESY, doc2dial, piece_at, row, squad


def passage(name: str, title: str, text: str) -> dict[str, Any]:
    return {"id": name, "title": title, "text": text}


def test_a_question_is_asked_alone_and_after_each_kind_of_sentence() -> None:
    passages = [
        passage("a1", "Alps", "Gold one. Gold two."),
        *(passage(f"a{at}", "Alps", "Near it.") for at in range(2, 8)),
        passage("b1", "Bees", "Far away."),
    ]
    asked = {"question": "How high?", "gold_passage_ids": ["a1"], "answers_all": ["4,806 m"]}
    cases = list(squad([asked], passages, 1, np.random.default_rng(0)))
    before = [case.question.removesuffix("How high?").strip() for case in cases]
    assert before[:3] == ["", COURTESY, "I read about Alps."]
    assert before[3] in {"Gold one.", "Gold two."}
    assert before[4:] == ["Near it.", "Far away."]
    for case in cases:
        assert case.passages == [("Alps", "Gold one. Gold two."), *[("Alps", "Near it.")] * 4]
        assert case.answers == ["4,806 m"]


def test_a_conversation_gives_one_turn_that_also_says_something() -> None:
    def turn(text: str) -> dict[str, Any]:
        return {
            "conversation_id": "c",
            "history": [{"role": "user", "text": text}],
            "gold_passage_ids": ["d"],
            "answers": ["w150"],
            "answer_start": [len(" ".join(f"w{at}" for at in range(150))) + 1],
        }

    words = " ".join(f"w{at}" for at in range(200))
    both = turn("I sold it. Must I pay for it?")
    asks, says = turn("Must I pay for it?"), turn("I sold it.")
    cases = list(doc2dial([asks, both, says], [passage("d", "Cars", words)], np.random.default_rng(0)))
    assert [case.question for case in cases] == ["I sold it. Must I pay for it?"]
    assert [text.split()[0] for _, text in cases[0].passages] == ["w100", "w0"]


def test_the_piece_with_a_word_is_found() -> None:
    parts = ["a b", "c d e"]
    assert [piece_at(parts, word) for word in (0, 1, 2, 4, 5)] == [0, 0, 1, 1, 1]


def test_a_row_has_both_readings_and_their_paired_difference() -> None:
    """By hand: F1 gains 0.5 in 20 of 40 questions, and the passage comes first as often."""
    stands = np.zeros((40, 2))
    first = stands.copy()
    first[:20, 0] = 0.5
    cells = row("turns", {AS_IT_STANDS: stands, ASKS_FIRST: first})
    assert list(cells.values())[:4] == ["turns", "40", "0.000", "0.250"]
    assert cells["difference of F1"].startswith("+0.250 [+0.")
    assert cells["difference of gold first"] == "+0.000, only 0 of 40 queries differ"
