"""The stability study against the paper's own counts, and by hand."""

import math

import pytest

from evenmesh_lab.studies import stability
from evenmesh_lab.studies.stability import ConversationJudgement, Marks, measure, pattern

O_O: Marks = (True, True)
O_X: Marks = (True, False)
X_O: Marks = (False, True)
X_X: Marks = (False, False)
BROKEN: Marks = (False,)


def test_recovery_as_in_the_papers_figure_2() -> None:
    # G2: 14 unsuccessful first turns of 15, 9 of them recovered: 9 / 14 = 64.3 %.
    marks = {f"M{place:03d}": X_O for place in range(9)}
    marks |= {f"M{place:03d}": X_X for place in range(9, 14)}
    marks["M014"] = O_O
    (row,) = measure({"G": {2: marks}}).trials
    assert row.num_unsuccessful == 14
    assert row.recovery == pytest.approx(9 / 14)
    assert [one.value for one in row.useful] == pytest.approx([1 / 15, 10 / 15])
    assert row.mean_useful.value == pytest.approx((1 / 15 + 10 / 15) / 2)


def test_a_turn_that_a_breakdown_prevented_is_not_useful_even_where_no_trial_reached_it() -> None:
    (row,) = measure({"B": {1: {"a": BROKEN, "b": BROKEN}}}, planned={"a": 2, "b": 2}).trials
    assert [one.value for one in row.useful] == [0.0, 0.0]
    assert (row.breakdowns.value, row.recovery) == (1.0, 0.0)
    (without,) = measure({"B": {1: {"a": BROKEN, "b": BROKEN}}}).trials
    assert len(without.useful) == 1


def test_topics_with_fewer_turns_are_left_out_of_later_ones() -> None:
    (row,) = measure({"B": {1: {"a": (True,), "b": (True, False)}}}, planned={"a": 1, "b": 2}).trials
    assert [one.value for one in row.useful] == [1.0, 0.0]
    assert row.mean_useful.value == pytest.approx((1 + 1 / 2) / 2)
    assert row.breakdowns.value == 0.0
    assert math.isnan(row.recovery)


def test_trials_against_each_other_by_hand() -> None:
    patterns = {"B": {1: {"a": O_O, "b": O_X}, 2: {"a": O_O, "b": BROKEN}, 3: {"a": O_X, "b": O_X}}}
    judged = {
        ("B", 1, "a"): ConversationJudgement(frozenset("xy"), 0.1, 0.5),
        ("B", 2, "a"): ConversationJudgement(frozenset("y"), 0.2, 0.5),
        ("B", 3, "a"): ConversationJudgement(frozenset("z"), 0.3, 0.5),
        ("B", 1, "b"): ConversationJudgement(frozenset(), 0.0, 0.0),
        ("B", 2, "b"): ConversationJudgement(frozenset(), 0.0, 0.0),
        ("B", 3, "b"): ConversationJudgement(frozenset(), 0.0, 0.3),
    }
    (row,) = measure(patterns, judged).stability
    assert (row.num_trials, row.num_topics, row.alike.value) == (3, 2, 0.0)
    # Turns alike, of pairs of trials: a 2 + 1 + 1 of 6; b 0 + 2 + 0 of 6.
    assert row.agreement == pytest.approx((2 + 1 + 1 + 0 + 2 + 0) / 12)
    # Jaccard of a: 1 / 2, 0, 0; of b nobody names anything.
    assert row.overlap.value == pytest.approx((1 / 2) / 3)
    assert row.overlap.undefined == 1
    # Variances of R: 0.01 and 0; of GF: 0 and 0.03.
    assert row.relevance_spread == pytest.approx(math.sqrt((0.01 + 0) / 2))
    assert row.fairness_spread == pytest.approx(math.sqrt((0 + 0.03) / 2))


def test_patterns_are_printed_as_in_the_paper() -> None:
    assert [pattern(one, 2) for one in (O_O, X_O, BROKEN, (None, True))] == ["o o", "x o", "x -", "? o"]
    tables = measure({"B": {1: {"a": O_O}, 2: {"a": BROKEN}}}).tables()
    assert [table.name for table in tables] == ["trials", "stability", "outcomes"]
    assert tables[-1].rows == (("B", 1, "a", "o o"), ("B", 2, "a", "x -"))


def test_one_trial_has_nothing_to_be_held_against() -> None:
    assert stability.measure({"B": {1: {"a": O_O}}}).stability == ()
