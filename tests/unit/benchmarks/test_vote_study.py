"""The study of votes: retrievers, measures and verdicts by hand, and its page by its records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("bm25s")
pytest.importorskip("torch")

from benchmarks import csv_rows
from benchmarks.page import placed
from benchmarks.vote_study import measures, records, tables
from benchmarks.vote_study.measures import Answered, Weights
from benchmarks.vote_study.retrievers import NAMES, Retrievers
from evenmesh_generator.domain import Passage

COUNT = len(NAMES)


def _row(question: str, answers: list[str], right: str) -> dict[str, Any]:
    known = [one == right for one in answers]
    return {"question": question, "answers": answers, "right": known, "exact": known}


def _rows() -> list[dict[str, Any]]:
    """Return twelve questions: the first retriever is right on all of the first third, then the others are."""
    first = [_row(f"q{number}", ["a", *["b"] * (COUNT - 1)], "a") for number in range(4)]
    return first + [_row(f"q{number}", ["b", *["a"] * (COUNT - 1)], "a") for number in range(4, 12)]


def test_a_vote_with_equal_weights_is_that_of_most() -> None:
    found = Answered.of({"bundled": _rows()})
    assert (found.trained, len(found.right)) == (4, 12)
    equal = measures.voted(found, Weights.equal(found))
    assert (equal.trained, equal.right.mean()) == (0.0, 1.0)
    learned = measures.voted(found, Weights.learned(found))
    assert (learned.trained, learned.right.mean()) == (1.0, 0.0)  # it follows the one that was right


def test_the_recommended_is_the_best_on_training_and_the_best_on_test_another() -> None:
    found = Answered.of({"bundled": _rows()})
    assert measures.recommended(found) == 0
    assert measures.best_on_test(found) == 1


def test_readers_are_compared_on_the_questions_that_both_answered() -> None:
    found = Answered.of({"bundled": _rows(), "first": _rows()[:6]})
    assert found.right.shape == (6, 2 * COUNT)
    assert found.names[COUNT] == f"first {NAMES[0]}"
    assert found.likeness.shape == (6, 2, 2 * COUNT, 2 * COUNT)
    assert np.all(found.likeness[:, :, 0, COUNT] == 1.0)  # the same answer of the other reader


def test_differences_count_the_questions_that_one_alone_gets_right() -> None:
    one, other = np.array([1, 1, 1, 0], dtype=bool), np.array([1, 0, 0, 1], dtype=bool)
    found = measures.against(one, other)
    assert (found["only_first"], found["only_second"], found["difference"]) == (2, 1, 0.25)
    assert found["low"] < 0.25 < found["high"]
    assert found["p"] == 1.0  # two of three


def test_inconsistency_is_of_those_that_can_know_the_answer() -> None:
    found = measures.inconsistency("squad-open", Answered.of({"bundled": _rows()}))
    # Six over all sources and two of the own one. The first is wrong where the seven are right, which are never wrong.
    assert found["retrievers"] == 8
    assert (found["pairs"], found["above"], found["least"], found["most"]) == (7, 7, 1.0, 1.0)


def test_the_outvoted_are_those_where_more_agree_on_a_wrong_answer() -> None:
    rows = _rows()[4:]  # the first retriever alone is wrong
    rows[-1] = _row("q11", ["a", "a", *["b"] * 6, *["c"] * (COUNT - 8)], "a")
    found = measures.outvoted(Answered.of({"bundled": rows}), rows)
    assert found == {"outvoted": 1, "same_wrong": 6.0, "right": 2.0, "wrong_are_more": 1}


def test_a_verdict_needs_a_small_p_or_a_small_upper_end() -> None:
    row = {"difference": "0.02", "low": "0.001", "high": "0.04"}
    assert tables.verdict(row, 0.04) == "holds"
    assert tables.verdict(row, 0.06) == "open"
    assert tables.verdict({**row, "difference": "-0.02", "high": "0.009"}, 0.001) == "refuted"


def test_each_source_is_searched_alone_and_with_the_others(tmp_path: Path) -> None:
    sources = {
        "squad": [Passage(f"s{n}", "", f"the amber lamp stands in hall {n}") for n in range(4)],
        "nq": [Passage(f"n{n}", "", f"a brass kettle of house {n}") for n in range(4)],
        "google-re": [Passage(f"g{n}", "", f"born 19{n}0") for n in range(4)],
    }
    found = Retrievers(sources, tmp_path).show("Where is the brass kettle?")
    assert tuple(found) == NAMES
    assert found["all-bm25-1"][0].startswith("n")
    assert found["all-dense-1"][0].startswith("n")
    assert [len(found[f"all-hybrid-{k}"]) for k in (1, 5)] == [1, 5]
    assert all(one.startswith("s") for one in found["squad-dense-3"])
    assert found["google-re-bm25-3"] == ()  # no word in common
    assert all(one.startswith("n") for one in found["nq-bm25-3"])


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    assert records.read("set", "bundled", tmp_path) == []
    records.write("set", "bundled", _rows(), tmp_path)
    assert records.read("set", "bundled", tmp_path) == _rows()


def test_weights_do_no_worse_than_the_best_retriever_on_training() -> None:
    """The page is made with what is stored, as searching all takes half a minute; a part is searched here."""
    rows = records.read("google-re", "first")
    kept = tables.stored()["google-re", "first"]
    some = Answered.of({"first": rows[:150]})
    for found, weights in (
        (Answered.of({"first": rows}), kept),
        (some, Weights.learned(some)),
    ):
        single = found.right[: found.trained].mean(axis=0).max()
        assert measures.voted(found, weights).trained >= single > 0


def test_the_page_and_its_numbers_are_those_of_the_records(tmp_path: Path) -> None:
    tables.summarize(tmp_path, tables.stored())
    for path in tmp_path.glob("*.csv"):
        assert csv_rows.read(path) == csv_rows.read(records.OUT / path.name), path.name
    page = records.OUT.with_suffix(".md").read_text(encoding="utf-8")
    assert placed(page, tables.tables()) == page
