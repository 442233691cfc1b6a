"""One query of four passages, of which p1 is useful, and k = 1: exposures are shares of the samples."""

import math
from pathlib import Path

import numpy as np
import pytest

from evenmesh import Passage
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh_core.errors import InvalidInput
from evenmesh_core.text_metrics import token_f1
from evenmesh_lab.files import FileError, Labels, QueryAudit, Sampling
from evenmesh_lab.studies import Bootstrap, exposure, utility
from evenmesh_orchestrator import domain as mesh
from evenmesh_orchestrator.asks.exposure import measure as measure_ask

QUICK = Bootstrap(num_resamples=100)
GRADES = {"p1": 1.0, "p2": 0.0, "p3": 0.0, "p4": 0.0}


def audit(*samplings: Sampling, query: str = "q1", references: tuple[str, ...] = ()) -> QueryAudit:
    return QueryAudit(query, Path("a.jsonl"), 1, list(samplings), references)


def sampling(system: str, alpha: float | None, firsts: str, **columns: object) -> Sampling:
    """Samples that show p1 first, or p2, and so on: a digit each."""
    rankings = [(f"p{digit}", "p9") for digit in firsts]
    empty: list[None] = [None] * len(rankings)
    made = {"answers": empty, "utilities": empty, "log_probabilities": empty, **columns}
    return Sampling(system, alpha, rankings, **made)  # type: ignore[arg-type]


def labels(**grades: float) -> Labels:
    return Labels(Path("qrels.txt"), {"q1": GRADES | grades}, {})


def test_exposure_of_a_query_is_that_of_the_formulas():
    found = exposure.measure([audit(sampling("x", 1.0, "1112"))], labels(), k=1, bootstrap=QUICK)

    (row,) = found.rows
    # p9 is ranked and not judged: five passages.
    assert (row.num_rankings, row.num_items, row.num_useful) == (4, 5, 1)
    assert row.ee_d == pytest.approx((3 / 4) ** 2 + (1 / 4) ** 2)
    assert row.ee_r == pytest.approx(3 / 4 * 1)
    assert row.ee_l == pytest.approx((1 - 3 / 4) ** 2 + (1 / 4) ** 2)
    assert found.summaries[0].means["ee_d"].value == pytest.approx(row.ee_d)


def test_items_are_what_was_drawn_from_and_what_was_missed_as_the_mesh_counts_them():
    ranking, pool = ("p1", "p2", "p3"), tuple(f"p{i}" for i in range(1, 7))
    useful, judged = {"p1": 1.0, "missed": 2.0}, {"p2": 0.0, "elsewhere": 0.0}
    known = Labels(Path("qrels.txt"), {"q1": useful | judged}, {})
    one = audit(Sampling("x", 1.0, [ranking], [None], [None], [None]))
    one.pools["x"] = pool

    found = exposure.measure([one], known, k=3, bootstrap=QUICK)

    # m = 2 of n = 6 + 1 items, k = 3: each other item deserves (3 - 2) / (7 - 2).
    (row,) = found.rows
    assert (row.num_items, row.num_useful) == (7, 2)
    assert row.ee_r == pytest.approx(1 + 2 * 1 / 5)
    assert row.ee_r_norm == pytest.approx((1 + 2 * 1 / 5) / (2 * 1 + 5 * (1 / 5) ** 2))
    passages = [Passage(name, "") for name in pool]
    order = np.arange(len(pool))
    shown = mesh.Contexts(np.array([[0, 1, 2]]), None)
    measured = measure_ask(
        mesh.Pool(passages, -order.astype(float), order[None, :], None, "x", ""),
        shown,
        (),
        evaluator_pb.Labels(has_useful=True, useful_passage_ids=sorted(useful)),
    )
    assert (row.ee_r, row.ee_r_norm, row.ee_d_norm) == pytest.approx(
        (measured.ee_r, measured.ee_r_norm, measured.ee_d_norm)
    )
    # Where nobody says what it was drawn from, it is what is known of: three ranked and two more judged.
    one.pools.clear()
    (row,) = exposure.measure([one], known, k=3, bootstrap=QUICK).rows
    assert row.num_items == 5
    assert row.ee_r == pytest.approx(1 + 2 * 1 / 3)


def test_without_labels_only_disparity_is_defined():
    found = exposure.measure([audit(sampling("x", None, "1"))], k=1, bootstrap=QUICK)
    assert found.longest == 2

    (row,) = found.rows
    assert row.ee_d_norm == 1.0
    assert row.num_useful is None
    assert math.isnan(row.ee_r)
    assert math.isnan(row.ee_l)
    assert found.curves == ()
    assert found.summaries[0].means["ee_r"].undefined == 1


def test_groups_and_passages_add_up_over_queries():
    queries = [audit(sampling("x", None, "1")), audit(sampling("x", None, "2"), query="q2")]
    known = Labels(Path("qrels.txt"), {"q1": GRADES, "q2": GRADES}, {})
    groups = {"p1": "a", "p2": "b", "p3": "b", "p4": "b"}

    found = exposure.measure(
        queries, known, k=1, groups=groups, group_by="maker", top_items=2, bootstrap=QUICK
    )

    (one,) = found.exposures
    assert [(share.name, share.exposure, share.share, share.target) for share in one.groups] == [
        ("a", 1.0, 1 / 2, 2.0),
        ("b", 1.0, 1 / 2, 0.0),
        (exposure.UNKNOWN, 0.0, 0.0, 0.0),
    ]
    assert one.groups[0].ratio == 1 / 2
    assert [share.name for share in one.items] == ["p1", "p2"]
    assert one.worst_group_ratio is not None
    # q1 shows the useful group as its target says, ratio 1; q2 not at all: no ratio is above 0.
    assert (one.worst_group_ratio.value, one.worst_group_ratio.undefined) == (1.0, 1)


def test_grades_count_alike_or_by_degree():
    query = audit(sampling("x", None, "2"))

    alike = exposure.measure([query], labels(p2=2.0), k=1, bootstrap=QUICK)
    by_degree = exposure.measure([query], labels(p2=2.0), k=1, graded=True, bootstrap=QUICK)
    strict = exposure.measure([query], labels(p2=2.0), k=1, min_grade=2.0, bootstrap=QUICK)

    assert alike.rows[0].ee_r == 1 / 2  # p1 or p2
    assert by_degree.rows[0].ee_r == 1.0  # p2 before p1
    assert (strict.rows[0].num_useful, strict.rows[0].ee_r) == (1, 1.0)


def test_a_query_without_labels_is_an_error_and_a_judged_one_without_ranking_is_counted():
    with pytest.raises(
        FileError, match=r"a\.jsonl:1: ranks the query 'q7', of which qrels\.txt knows nothing"
    ):
        exposure.measure([audit(sampling("x", None, "1"), query="q7")], labels(), k=1)

    known = Labels(Path("qrels.txt"), {"q1": GRADES, "q2": GRADES}, {})
    assert exposure.measure([audit(sampling("x", None, "1"))], known, k=1, bootstrap=QUICK).unranked == 1


def test_systems_are_compared_at_the_same_alpha_on_shared_queries():
    queries = [
        audit(sampling("x", None, "1"), sampling("y", None, "2"), sampling("y", 1.0, "12"), query=f"q{n}")
        for n in range(4)
    ]
    known = Labels(Path("qrels.txt"), {f"q{n}": GRADES for n in range(4)}, {})

    found = exposure.measure(queries, known, k=1, bootstrap=QUICK).comparisons

    assert [(one.measure, one.first, one.second, one.alpha) for one in found] == [
        ("ee_d_norm", "x", "y", None),
        ("ee_r_norm", "x", "y", None),
    ]
    assert found[1].difference.value == 1.0
    assert found[0].mcnemar is None  # disparity is 1 throughout: no test of rights and wrongs
    assert found[1].mcnemar is not None
    assert found[1].mcnemar.p_value == pytest.approx(2 * (1 / 2) ** 4)


def test_the_same_seed_gives_the_same_intervals_whatever_else_is_measured():
    queries = [audit(sampling("x", 1.0, "12" * n + "1"), query=f"q{n}") for n in range(6)]
    more = [
        QueryAudit(one.query_id, one.path, one.line, [sampling("y", 1.0, "1"), *one.samplings])
        for one in queries
    ]

    alone = exposure.measure(queries, k=1, bootstrap=QUICK).summaries[0].means["ee_d"]
    beside = exposure.measure(more, k=1, bootstrap=QUICK).summaries[1].means["ee_d"]

    assert alone == beside
    assert alone.low < alone.value < alone.high


def test_utility_is_relative_to_the_best_of_any_run():
    query = audit(
        sampling("x", None, "1", answers=["a red bike"]),
        sampling("x", 1.0, "12", answers=["bike", None]),
        sampling("y", 1.0, "1", utilities=[0.25]),
        references=("red bike",),
    )

    rows = utility.measure([query], k=1, bootstrap=QUICK).rows

    f1 = 2 * (1 * 1 / 2) / (1 + 1 / 2)  # "bike" of "red bike"
    assert f1 == token_f1("bike", "red bike")
    assert [row.u_max for row in rows] == [1.0] * 3
    assert [row.eu for row in rows] == pytest.approx([1.0, f1, 0.25])
    assert [row.num_unanswered for row in rows] == [0, 1, 0]


def test_utility_without_any_use_or_answer_is_undefined():
    nothing = audit(sampling("x", None, "1", utilities=[0.0]), sampling("x", 1.0, "12"))

    rows = utility.measure([nothing], k=1, bootstrap=QUICK).rows

    assert rows[0].eu == 0.0
    assert math.isnan(rows[0].eu_norm)
    assert math.isnan(rows[1].eu)
    assert rows[1].num_unanswered == 2


def test_rankings_may_weigh_by_their_probability():
    logs = [math.log(0.6) - 1000, math.log(0.2) - 1000]  # far below what exp can hold
    query = audit(sampling("x", 1.0, "12", utilities=[1.0, 0.0], log_probabilities=logs))

    assert utility.measure([query], k=1, weighted=True, bootstrap=QUICK).rows[0].eu == pytest.approx(
        0.6 / (0.6 + 0.2)
    )
    bare = audit(sampling("x", 1.0, "12", utilities=[1.0, 0.0]))
    with pytest.raises(FileError, match="has no log_probability to weigh it by"):
        utility.measure([bare], k=1, weighted=True)


def test_exposure_beside_weighted_utility_is_weighted_too():
    """Of the first place p1 has 3/4 and p2 1/4; p1 is useful, of three passages."""
    query = audit(
        sampling("x", 1.0, "12", utilities=[1.0, 0.0], log_probabilities=[math.log(0.6), math.log(0.2)]),
        sampling("x", None, "1", utilities=[1.0]),
    )

    drawn, even = utility.measure([query], labels(), k=1, weighted=True, bootstrap=QUICK).rows

    assert drawn.ee_d_norm == pytest.approx((3 / 4) ** 2 + (1 / 4) ** 2)
    assert drawn.ee_r_norm == pytest.approx(3 / 4)
    assert (even.eu, even.ee_d_norm) == (1.0, 1.0)  # one ranking needs no probability


@pytest.mark.parametrize("columns", [{"numbered": True}, {}], ids=["numbered", "repeated"])
def test_samples_are_not_weighted_again(columns: dict[str, object]):
    """Samples come as often as they are probable: weights would count their probability twice."""
    drawn = "12" if columns else "112"
    logs = [math.log(0.5)] * len(drawn)
    query = audit(sampling("x", 1.0, drawn, utilities=[1.0] * len(drawn), log_probabilities=logs, **columns))

    with pytest.raises(FileError, match="whose rankings are samples"):
        utility.measure([query], k=1, weighted=True)


def test_levels_of_fairness_are_held_against_the_deterministic_ranking():
    query = audit(
        sampling("x", None, "1", utilities=[1.0]),
        sampling("x", 1.0, "12", utilities=[1.0, 0.0]),  # EE-D 1/2, EU 1/2
    )

    found = utility.measure([query], k=1, bootstrap=QUICK)

    (one,) = found.fairness
    assert one.baseline == 1.0
    np.testing.assert_array_equal(one.intervals.values, [np.nan, np.nan, 1 / 2 - 1, np.nan, np.nan])
    np.testing.assert_array_equal([level.value for level in one.differences], one.intervals.values)
    assert np.isnan(one.differences[2].low)  # one query says nothing of others
    assert [curve.name for curve in found.curves] == ["disparity-utility"]
    assert found.curves[0].tradeoff.fit.slope == pytest.approx((1 - 1 / 2) / (1 - 1 / 2))


@pytest.mark.parametrize("pairs", [1, 12])
def test_levels_of_fairness_have_intervals_over_enough_queries(pairs: int):
    queries = [
        audit(
            sampling("x", None, "1", utilities=[1.0]),
            sampling("x", 1.0, "12", utilities=[1.0, low]),
            query=f"{query}-{number}",
        )
        for query, low in (("q1", 0.0), ("q2", 0.5))
        for number in range(pairs)
    ]

    (one,) = utility.measure(queries, k=1, bootstrap=QUICK).fairness

    level = one.differences[2]
    assert level.value == pytest.approx((1 / 2 + 3 / 4) / 2 - 1)
    if pairs == 1:
        assert math.isnan(level.low)
        assert math.isnan(level.high)
    else:
        assert 1 / 2 - 1 < level.low < level.value < level.high < 3 / 4 - 1


def test_answers_need_references_and_metrics_are_known():
    with pytest.raises(FileError, match="whose answers have neither utilities nor references"):
        utility.measure([audit(sampling("x", None, "1", answers=["yes"]))], k=1)
    with pytest.raises(InvalidInput, match="metric is 'bleu'; allowed: token_f1, "):
        utility.measure([], k=1, metric="bleu")


def test_lamp_scores_count():
    query = audit(sampling("x", None, "1", answers=["4"]), references=("5",))

    assert utility.measure([query], k=1, metric="LaMP-3", bootstrap=QUICK).rows[0].eu == 4 - abs(5 - 4)


def test_a_mean_of_utilities_above_1_lies_in_its_interval() -> None:
    """LaMP-3's utilities are 4 less the error; 3 and 4 in turn have Student's t interval of 20 values."""
    queries = [
        audit(sampling("x", None, "1", answers=[guess]), query=f"q{at}", references=("5",))
        for at, guess in enumerate(["4", "5"] * 10)
    ]
    (found,) = utility.measure(queries, k=1, metric="LaMP-3", bootstrap=QUICK).summaries
    eu = found.means["eu"]
    assert eu.value == 3.5
    assert (eu.low, eu.high) == pytest.approx((3.2599, 3.7401), abs=1e-4)  # 3.5 ± 2.093 · 0.513 / √20


def test_a_metric_that_is_asked_for_scores_what_has_a_utility() -> None:
    query = audit(sampling("x", None, "1", answers=["the yes"], utilities=[0.25]), references=("yes",))
    assert utility.measure([query], k=1, bootstrap=QUICK).rows[0].eu == 0.25
    assert utility.measure([query], k=1, bootstrap=QUICK).metric == "as recorded"
    exact = utility.measure([query], k=1, metric="rougeL", bootstrap=QUICK)
    assert exact.rows[0].eu == pytest.approx(2 / 3)
    assert exact.metric == "rougeL"
    bare = audit(sampling("x", None, "1", answers=["yes"], utilities=[0.25]))
    with pytest.raises(FileError, match="no references: leave out the metric rougeL"):
        utility.measure([bare], k=1, metric="rougeL", bootstrap=QUICK)


def test_an_outcome_that_never_came_has_an_interval_that_is_no_point() -> None:
    queries = [
        audit(sampling("x", None, "1", answers=["no"], utilities=[0.0]), query=f"q{at}") for at in range(40)
    ]
    (found,) = utility.measure(queries, k=1, bootstrap=QUICK).summaries
    assert (found.means["eu"].value, found.means["eu"].low) == (0.0, 0.0)
    assert found.means["eu"].high == pytest.approx(0.0876, abs=1e-4)  # Wilson's, 0 of 40
