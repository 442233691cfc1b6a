"""Turns of conversations as the tables of earlier turns take them, and their rows."""

from __future__ import annotations

import numpy as np

from benchmarks.history_answers import ALONE, contextual, split
from benchmarks.history_answers import DEFAULT as WORDS
from benchmarks.history_answers import row as answers_row
from benchmarks.history_turns import DEFAULT, ONCE, PARTS, Turn, drawn, row, searched, turns


def said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "text": text}


def test_a_turn_has_the_users_turns_before_it_and_what_answers_it() -> None:
    history = [said("user", "Oil?"), said("agent", "Weekly."), said("user", "And wax?")]
    task = {"conversation_id": "c", "history": history, "gold_passage_ids": ["p"]}
    ends_with_the_agent = task | {"history": history[:2]}
    unanswered = task | {"gold_passage_ids": []}
    assert list(turns([task, ends_with_the_agent, unanswered])) == [Turn("c", "And wax?", ["Oil?"], ["p"])]


def test_a_conversation_gives_one_turn_that_has_enough_before_it() -> None:
    """Turns of one conversation are not independent: two of them would make intervals too narrow."""
    asked = [
        Turn(conversation, f"{conversation}{place}", ["x"] * place, ["p"])
        for conversation in "ab"
        for place in range(4)
    ]
    found = drawn(asked, 2)
    assert [one.conversation for one in found] == ["a", "b"]
    assert {len(one.earlier) for one in found} <= {2, 3}
    assert drawn(reversed(asked[:4]), 3) == [asked[3]]
    assert found == drawn(asked, 2)
    seeds = {drawn(asked, 0, seed=seed)[0].question for seed in range(20)}
    assert seeds == {"a0", "a1", "a2", "a3"}


def test_a_row_has_means_and_what_the_default_has_beside_them() -> None:
    """By hand: the default gains 0.5 in 20 of 40 conversations beside no words, and differs from 5 in none."""
    none = np.zeros(40)
    words = np.where(np.arange(40) < 20, 0.5, 0.0)
    cells = row(PARTS[0], {"0 (`none`)": none, "5": words, DEFAULT: words, ONCE: none})
    assert cells["conversations"] == "40"
    assert (cells["0 (`none`)"], cells["5"], cells[DEFAULT], cells[ONCE]) == (
        "0.000",
        "0.250",
        "0.250",
        "0.000",
    )
    assert cells["`words` beside 0"].startswith("+0.250 [+0.")
    assert cells["`words` beside 5"] == "+0.000, only 0 of 40 queries differ"
    assert cells["`words` beside once"].startswith("+0.250 [+0.")


def test_words_of_earlier_turns_are_searched_for_as_by_the_mesh() -> None:
    turn = Turn("c", "How often?", ["zipper oil chain"], ["p"])
    assert searched(turn, "0 (`none`)") == "How often?"
    assert searched(turn, DEFAULT) == "How often? How often? zipper oil chain"
    assert searched(turn, ONCE) == "How often? zipper oil chain"


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


def test_a_row_of_answers_has_means_and_what_words_gain() -> None:
    alone, words = np.zeros(40), np.where(np.arange(40) < 20, 0.5, 0.0)
    cells = answers_row(PARTS[0], {ALONE: alone, "1 turn": alone, "3": words, WORDS: words})
    assert (cells["conversations"], cells[ALONE], cells[WORDS]) == ("40", "0.000", "0.250")
    assert cells["`words` beside alone"].startswith("+0.250 [+0.")
