"""The study of the price of evenness: rankings, measures and verdicts by hand, and its page by its records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("bm25s")
pytest.importorskip("torch")

from benchmarks import csv_rows
from benchmarks.page import placed
from benchmarks.price_study import measures, rankings, records, tables
from benchmarks.price_study.rankings import FIXED, ORACLE, SAMPLES, K

POOL = {f"p{number}": 20.0 - number for number in range(20)}


def _row(difference: float, low: float, high: float, **more: str) -> dict[str, str]:
    return {"difference": str(difference), "low": str(low), "high": str(high), **more}


def test_the_deterministic_ranking_shows_the_best_and_a_high_dial_nearly_so() -> None:
    found = {one.dial: one for one in rankings.shown("q", "bm25", POOL, {"p0", "p9"})}
    assert found[FIXED].contexts == (("p0", "p1", "p2", "p3", "p4"),)
    assert found[FIXED].disparity == pytest.approx(1.0)
    assert found["0"].disparity == pytest.approx(K / 20)  # every exposure is 5/20: 20 · (1/4)² / 5
    assert found["0"].relevance < found["8"].relevance
    assert all(len(one.contexts) == SAMPLES for dial, one in found.items() if dial != FIXED)
    assert rankings.shown("q", "bm25", {}, {"p0"}) == []


def test_noise_belongs_to_a_passage_whatever_else_is_in_the_pool() -> None:
    both, one = rankings.noise("q", ["a", "b"]), rankings.noise("q", ["b"])
    assert both.shape == (SAMPLES, 2)
    assert np.array_equal(both[:, 1], one[:, 0])
    assert not np.array_equal(one, rankings.noise("other", ["b"]))


def test_drawn_contexts_follow_the_policy() -> None:
    # One of two, with weights exp(1) and exp(2) at α = 1: the better is first in e / (1 + e) of all draws.
    pool = {"a": 1.0, "b": 0.0}
    keys = np.array([rankings.log_weights(np.array([1.0, 0.0]), 1.0) + noise for noise in _noises(2000)])
    share = float(np.mean([keys[:, 0] > keys[:, 1]]))
    assert share == pytest.approx(np.e / (1 + np.e), abs=0.04)
    assert len(pool) == 2


def _noises(questions: int) -> np.ndarray:
    return np.array([rankings.noise(f"q{number}", ["a", "b"])[0] for number in range(questions)])


def test_the_oracle_shows_all_useful_passages_and_then_others() -> None:
    found = rankings.oracle("q", "bm25", POOL, {"p3", "p17"})
    assert found.dial == ORACLE
    assert all({"p3", "p17"} <= set(context) and len(context) == K for context in found.contexts)
    assert len(set(found.contexts)) > 1


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    shown = rankings.shown("q", "bm25", POOL, {"p0"})
    records.write_rankings("set", {"q": shown}, tmp_path)
    contexts = records.read_contexts("set", tmp_path)["q"]
    rows = records.read_shown("set", tmp_path)
    assert [(row["stage"], row["dial"]) for row in rows] == [(one.stage, one.dial) for one in shown]
    assert [[contexts[place] for place in row["contexts"]] for row in rows] == [
        list(one.contexts) for one in shown
    ]
    assert records.read_answers("set", "bundled", tmp_path) == []
    answer = {"question": "q", "context": 0, "answer": "x", "f1": 0.5, "exact": 0.0}
    records.write_answers("set", "bundled", [answer], tmp_path)
    assert records.read_answers("set", "bundled", tmp_path) == [answer]


def _records() -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Return two questions: the first has F1 1 from context 0 and 0 from 1, the second never anything."""
    shown: list[dict[str, object]] = []
    answers: list[dict[str, object]] = []
    for question in ("a", "b"):
        common = {"question": question, "stage": "bm25", "relevance": 0.5}
        shown.append({**common, "dial": FIXED, "disparity": 1.0, "contexts": [0]})
        shown.append({**common, "dial": "4", "disparity": 0.5, "contexts": [0, 0, 1, 1]})
        answers += [
            {
                "question": question,
                "context": place,
                "f1": float(question == "a" and place == 0),
                "exact": 0.0,
            }
            for place in (0, 1)
        ]
    shown.append({**shown[0], "question": "not asked"})
    return shown, answers


def test_utility_is_the_mean_over_rankings_and_differences_are_paired() -> None:
    shown, answers = _records()
    found = measures.read(shown, answers)
    assert found.utility["bm25", "4"] == {"a": 0.5, "b": 0.0}
    assert found.best == {"a": 1.0, "b": 0.0}
    row = next(one for one in measures.compared("set", "bundled", found, shown) if one["dial"] == "4")
    assert (row["questions"], row["eu"], row["difference"], row["differ"]) == (2, 0.25, -0.25, 1)
    assert (row["reachable"], row["reachable_difference"]) == (1, -0.5)
    assert (row["ee_d"], row["ee_r"]) == (0.5, 0.5)


def test_readers_are_compared_on_the_questions_of_both() -> None:
    shown, answers = _records()
    first = measures.read(shown, answers)
    second = measures.read(shown, [{**row, "f1": 0.0} for row in answers])
    (row,) = measures.between("set", first, second)
    assert (row["questions"], row["difference"]) == (2, -0.25)
    alone = measures.read(shown, [row for row in answers if row["question"] == "a"])
    assert measures.between("set", first, alone) == []  # one question has no interval


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(-0.01, 0.1, "holds"), (-0.1, -0.02, "fails"), (-0.1, 0.0, "open")]
)
def test_fairness_is_free_where_the_interval_is_above_the_margin(
    low: float, high: float, verdict: str
) -> None:
    assert tables.free(_row(0.0, low, high)) == verdict


def test_a_fairer_ranking_is_better_refuted_or_open() -> None:
    above, level, wide = _row(0.1, 0.05, 0.15), _row(0.0, -0.01, 0.01), _row(0.0, -0.1, 0.1)
    assert tables.better([(level, 1.0), (above, 0.01)]) == "holds"
    assert tables.better([(level, 1.0), (above, 0.2)]) == "open"
    assert tables.better([(level, 1.0), (level, 0.01)]) == "refuted"
    assert tables.better([(level, 1.0), (wide, 1.0)]) == "open"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(-0.015, 0.015, "holds"), (-0.05, -0.02, "fails"), (0.02, 0.05, "fails"), (-0.02, 0.01, "open")],
)
def test_readers_are_alike_where_the_interval_is_within_the_margin(
    low: float, high: float, verdict: str
) -> None:
    assert tables.within(_row(0.0, low, high)) == verdict


def test_the_page_says_what_the_records_say() -> None:
    page = tables.OUT.with_suffix(".md").read_text(encoding="utf-8")
    assert placed(page, tables.tables()) == page


def test_the_numbers_are_those_of_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "RESAMPLES", 100)  # p-values alone depend on it
    stored = {name: csv_rows.read(tables.OUT / name) for name in ("summary.csv", "readers.csv")}
    tables.summarize(tmp_path)
    for name, rows in stored.items():
        found = csv_rows.read(tmp_path / name)
        assert len(found) == len(rows)
        for one, other in zip(found, rows, strict=True):
            assert one.keys() == other.keys()
            for column in one.keys() - {"p"}:
                assert _same(one[column], other[column]), (name, column, one, other)


def _same(one: str, other: str) -> bool:
    try:
        return float(one) == pytest.approx(float(other), rel=1e-4, abs=1e-6, nan_ok=True)
    except ValueError:
        return one == other


def test_labels_are_compared_where_a_pool_has_both_kinds() -> None:
    one = {"stage": "bm25", "dial": "4", "gold": "4", "utility": "2", "both": "1"}
    rows = [
        {**one, "relevance_gold": "0.8", "relevance_utility": "0.5"},
        {**one, "gold": "2", "relevance_gold": "0.4", "relevance_utility": "0.7"},
        {**one, "utility": "0", "relevance_gold": "1", "relevance_utility": "nan"},
    ]
    (found,) = tables.labelled(rows)
    assert found == {
        "first stage": "bm25",
        "dial": "4",
        "questions": "2",
        "gold passages": "3.00",
        "passages that help": "2.00",
        "of both kinds": "1.00",
        "EE-R, gold": "0.60",
        "EE-R, utility": "0.60",
    }
