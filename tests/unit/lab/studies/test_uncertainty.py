"""Intervals and p-values of studies: which method where, and families of comparisons."""

import math

import numpy as np
import pytest

from evenmesh_core.intervals import CurvePoints, student_interval
from evenmesh_core.proportions import paired_difference_interval, wilson_interval
from evenmesh_core.sparse_means import sparse_interval
from evenmesh_lab.studies import Bootstrap
from evenmesh_lab.studies.curves import areas_of, curves_of
from evenmesh_lab.studies.statements import intervals
from evenmesh_lab.studies.uncertainty import UNIT, UPWARD, adjusted, compare
from evenmesh_lab.studies.utility import UtilityRow, study_of

FAST = Bootstrap(num_resamples=200)


def test_shares_of_right_answers_have_score_intervals() -> None:
    found = FAST.share("x", [0.0] * 51)
    assert (found.low, found.high) == wilson_interval(0, 51)
    assert (found.method, found.defined) == ("score", 51)
    assert FAST.share("x", [0.0, 1.0, math.nan]).undefined == 1
    assert FAST.share("x", [0.0, 0.5, 1.0]).method == "t"  # a query's samples, averaged


def test_means_choose_their_interval_by_the_number_of_values() -> None:
    """Means of fewer than 30 values have Student's t, and none where more than half are the same but not all."""
    values = np.arange(30) / 30
    assert FAST.mean("x", values).method == "bca"
    few = FAST.mean("x", [*values[:29], math.nan])
    expected = student_interval(values[:29])
    assert (few.method, few.low, few.undefined) == ("t", pytest.approx(expected.low), 1)
    sparse = FAST.mean("x", [0.0] * 40 + [0.5] * 11)
    assert (math.isnan(sparse.low), sparse.missing) == (True, "only 11 of 51 queries differ")
    assert FAST.mean("x", [0.0] * 40 + [0.5] * 12).method == "bca"
    for many in (5, 40):  # an interval of no width would say that the mean is certain
        level = FAST.mean("x", [0.25] * many)
        assert (level.value, math.isnan(level.low)) == (0.25, True)
        assert level.missing == f"all {many} queries are alike"


def test_a_ratio_of_what_never_came_has_no_interval() -> None:
    """Of 14 wrong answers another retriever gets none right: a bootstrap would say [0, 0]."""
    won = np.zeros(14)
    never = FAST.ratio("x", range(14), lambda places: float(won[places].mean()), counted=14)
    assert (never.value, math.isnan(never.low), never.missing) == (0.0, True, "all resamples are alike")
    won[:3] = 1.0
    some = FAST.ratio("x", range(14), lambda places: float(won[places].mean()), counted=14)
    assert (some.missing, some.low < some.value < some.high) == ("", True)


def test_limits_stay_in_the_range_of_the_measure() -> None:
    bootstrap = FAST
    free = bootstrap.mean("a", [0.5, 1.0])  # 0.75 ± 12.706 · 0.25
    assert (free.low, free.high) == pytest.approx((-2.427, 3.927), abs=5e-4)
    unit = bootstrap.mean("a", [0.5, 1.0], within=UNIT)
    assert (unit.value, unit.low, unit.high) == (0.75, 0.0, 1.0)
    upward = bootstrap.mean("a", [0.5, 1.0], within=UPWARD)
    assert (upward.low, upward.high) == (0.0, free.high)
    alone = bootstrap.mean("a", [0.5], within=UNIT)
    assert np.isnan([alone.low, alone.high]).all()


def test_comparisons_choose_their_interval_by_the_values() -> None:
    """By hand: of 40 queries one is right with the first alone, three with the second alone."""
    first = {f"q{n}": float(n < 20) for n in range(40)}
    second = first | {"q0": 0.0, "q30": 1.0, "q31": 1.0, "q32": 1.0}
    binary = compare(FAST, "accuracy", ("a", first), ("b", second))
    assert binary is not None
    assert binary.mcnemar is not None
    assert (binary.difference.low, binary.difference.high) == paired_difference_interval(1, 3, 40)
    assert binary.difference.value == pytest.approx(-2 / 40)

    few = compare(FAST, "EU", ("a", {**first, "q1": 0.5}), ("b", {**first, "q1": 0.25, "q2": 0.75}))
    assert few is not None
    assert few.difference.missing == "only 2 of 40 queries differ"
    sparse = compare(FAST, "EU", ("a", {query: value / 2 for query, value in first.items()}), ("b", first))
    assert sparse is not None
    expected = sparse_interval([0.5] * 20 + [0.0] * 20)
    assert (sparse.difference.method, sparse.difference.high) == ("t+2", pytest.approx(-expected.low))

    rng = np.random.default_rng(0)
    dense = {query: float(value) for query, value in zip(first, rng.random(40), strict=True)}
    graded = compare(FAST, "EU", ("a", first), ("b", dense))
    assert graded is not None
    assert graded.difference.method == "bca"


def test_a_p_value_says_the_same_as_its_interval() -> None:
    """Of two queries that both gain, a bootstrap never draws a mean as far away: p = 1 / (1 + resamples)."""
    few = FAST.paired("x", [0.5, 0.6], [0.4, 0.3])
    assert (math.isnan(few.p_value), few.difference.missing) == (True, "only 2 of 2 queries differ")
    same = FAST.paired("x", [0.5, 0.6], [0.5, 0.6])
    assert same.p_value == 1.0
    rng = np.random.default_rng(1)
    sides = set()
    for shift in np.linspace(0, 0.8, 40):
        found = FAST.paired("x", rng.random(14) + shift, rng.random(14))
        assert found.difference.method == "t+2"
        sides.add(found.p_value < 0.05)
        assert (found.p_value < 0.05) == (found.difference.low > 0 or found.difference.high < 0)
    assert sides == {True, False}


def test_each_measure_is_a_family() -> None:
    values = {f"q{n}": float(n % 2) for n in range(30)}
    other = dict.fromkeys(values, 1.0)
    pairs = [
        compare(FAST, measure, ("a", values), (name, other))
        for measure, names in (("EM", "bcd"), ("F1", "b"))
        for name in names
    ]
    found = adjusted([one for one in pairs if one is not None])
    p = found[0].mcnemar.p_value if found[0].mcnemar else math.nan
    assert [one.p_holm for one in found] == pytest.approx([3 * p, 3 * p, 3 * p, p])


def row(query: str, system: str, alpha: float | None, x: float, y: float) -> UtilityRow:
    return UtilityRow(query, system, alpha, 1, 0, y, 1.0, y, x, y)


def test_levels_of_fairness_are_held_against_the_same_query() -> None:
    """By hand: an easy query loses 0.1 at EE-D 0.5, a hard one has no point there; the mean is 0.5."""
    rows = [
        row("easy", "s", None, 1.0, 0.9),
        row("easy", "s", 1.0, 0.5, 0.8),
        row("hard", "s", None, 1.0, 0.1),
        row("hard", "s", 1.0, 0.1, 0.1),
    ]
    (found,) = study_of(rows, k=1, longest=1, bootstrap=FAST).fairness
    assert found.differences[2].value == pytest.approx(0.8 - 0.5)
    assert found.paired_differences[2].value == pytest.approx(-0.1)
    assert found.paired_differences[0].value == pytest.approx(0)
    assert found.paired.counts.tolist() == [1, 0, 1, 0, 0]
    assert math.isnan(found.paired_differences[4].value)
    tables = {table.name: table for table in study_of(rows, k=1, longest=1, bootstrap=FAST).tables()}
    assert list(tables)[1:3] == ["fairness-paired", "fairness"]


def test_areas_are_compared_over_the_common_range_of_systems_with_a_curve() -> None:
    """y = x from 0.2 to 1 and y = 1 from 0.4 to 1: means 0.7 and 1 from 0.4 to 1. The oracle has one dial."""
    rows = [
        row(query, system, alpha, x, y)
        for query in "abc"
        for system, points in {
            "s": [(1.0, 0.2, 0.2), (None, 1.0, 1.0)],
            "t": [(1.0, 0.4, 1.0), (None, 1.0, 1.0)],
            "oracle": [(1.0, 0.3, 1.0)],
        }.items()
        for alpha, x, y in points
    ]
    pairs = [("c", "ee_d_norm", "eu_norm")]
    first, second = areas_of(rows, pairs, FAST)
    assert (first.system, first.low, first.high) == ("s", pytest.approx(0.4), pytest.approx(1.0))
    assert (first.area.value, second.area.value) == (pytest.approx(0.7), pytest.approx(1.0))
    assert first.difference is None
    assert second.difference is not None
    assert second.difference.value == pytest.approx(-0.3)
    assert [one.system for one in curves_of(rows, pairs, FAST)] == ["s", "t", "oracle"]
    assert areas_of(rows[:2], pairs, FAST) == ()


def test_curves_of_few_queries_have_students_interval() -> None:
    """Where all queries have the same two dials, slope and area are means over queries, and so are their limits."""
    ends = [(0.1, 0.9), (0.3, 0.5), (0.2, 0.2), (0.0, 0.4), (0.6, 0.9), (0.4, 0.3), (0.1, 0.2), (0.5, 1.0)]

    def points(times: int) -> CurvePoints:
        pairs = ends * times
        queries = [place for place in range(len(pairs)) for _ in range(2)]
        return CurvePoints(queries, [0.2, 1.0] * len(pairs), np.ravel(pairs), [1.0, 2.0] * len(pairs))

    found = Bootstrap().tradeoff("c", points(1))
    for one, values in (
        (found.slope, [(last - first) / 0.8 for first, last in ends]),
        (found.auc, [(first + last) / 2 for first, last in ends]),
    ):
        expected = student_interval(values)
        assert (one.method, one.value) == ("t", pytest.approx(expected.value))
        assert one.high - one.low == pytest.approx(expected.high - expected.low, rel=0.1)
    common = Bootstrap().areas("c", [points(1), points(1)])
    assert [one.method for one in common.areas] == ["t", "t"]
    assert common.areas[0].high - common.areas[0].low == pytest.approx(
        found.auc.high - found.auc.low, rel=0.1
    )
    assert FAST.tradeoff("c", points(4)).auc.method == "bca"
    two = CurvePoints("aabb", [0.2, 1.0] * 2, [0.0, 0.1, 0.8, 1.0], [1.0, 2.0] * 2)
    assert (FAST.tradeoff("c", two).auc.low, FAST.tradeoff("c", two).auc.high) == (0.0, 1.0)


def test_queries_without_a_value_do_not_count_for_the_interval_of_a_curve() -> None:
    queries = [place for place in range(40) for _ in range(2)]
    y = [0.1, 0.4, 0.3, 0.9] * 10 + [math.nan] * 40
    assert FAST.tradeoff("c", CurvePoints(queries, [0.2, 1.0] * 40, y, [1.0, 2.0] * 40)).slope.method == "t"


def test_the_method_of_intervals_is_stated_with_its_exceptions() -> None:
    assert intervals(Bootstrap(level=0.9), "topics") == (
        "90% intervals: Student's t of fewer than 30 topics, score intervals of shares, else bca bootstrap over "
        "topics, 2,000 resamples, seed 0"
    )
