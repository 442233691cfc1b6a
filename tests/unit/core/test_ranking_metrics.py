import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenmesh_core.errors import InvalidInput
from evenmesh_core.ranking_metrics import ranking_metrics

property_test = settings(derandomize=True, deadline=None, max_examples=60)


def score(ranking, grades, k):
    metrics = ranking_metrics({"q": ranking}, {"q": grades}, k=k)
    return {name: float(getattr(metrics, name)[0]) for name in metrics.means()}


def test_metrics_by_hand():
    # relevant: a (grade 1), c (2), x (1); ranked a, b, c; k = 3
    found = score(["a", "b", "c"], {"a": 1, "c": 2, "x": 1, "b": 0}, 3)
    ideal = 2 / math.log2(2) + 1 / math.log2(3) + 1 / math.log2(4)
    assert found["ndcg"] == pytest.approx((1 / math.log2(2) + 2 / math.log2(4)) / ideal)
    assert found["reciprocal_rank"] == 1 / 1
    assert found["recall"] == pytest.approx(2 / 3)
    assert found["precision"] == pytest.approx(2 / 3)


def test_the_first_relevant_passage_past_k_does_not_count():
    assert score(["b", "c", "a"], {"a": 1}, 2) == {
        "ndcg": 0,
        "reciprocal_rank": 0,
        "recall": 0,
        "precision": 0,
    }
    assert score(["b", "c", "a"], {"a": 1}, 3)["reciprocal_rank"] == pytest.approx(1 / 3)


def test_precision_divides_by_k_even_if_the_ranking_is_short():
    assert score(["a"], {"a": 1}, 5)["precision"] == pytest.approx(1 / 5)


def test_the_order_given_is_the_order_scored():
    """trec_eval ranks equal scores by descending id: here there are none."""
    assert score(["z", "a"], {"a": 1}, 5)["reciprocal_rank"] == 1 / 2
    assert score(["a", "z"], {"z": 1}, 5)["reciprocal_rank"] == 1 / 2


def test_queries_without_relevant_passages_are_undefined_and_missing_rankings_are_empty():
    metrics = ranking_metrics(
        {"good": ["a"], "none": ["a"], "empty": []},
        {"good": {"a": 1}, "none": {"a": 0}, "empty": {"a": 1}, "missing": {"b": 2}, "unjudged": {}},
        k=1,
    )
    assert metrics.queries == ("good", "none", "empty", "missing", "unjudged")
    np.testing.assert_array_equal(metrics.ndcg, [1, np.nan, 0, 0, np.nan])
    np.testing.assert_array_equal(metrics.precision, [1, 0, 0, 0, 0])
    assert metrics.means()["ndcg"] == ((1 + 0 + 0) / 3, 3, 2)


def test_no_rankings_at_all():
    assert ranking_metrics({}, {"q": {"a": 1}}, k=1).recall.tolist() == [0.0]


@property_test
@given(st.permutations("abcdefgh"), st.lists(st.integers(0, 3), min_size=8, max_size=8), st.integers(1, 10))
def test_against_the_formulas(ranking, grade_list, k):
    grades = dict(zip("abcdefgh", grade_list, strict=True))
    found = score(ranking, grades, k)
    gains = [grades[passage] for passage in ranking]
    relevant = sum(g > 0 for g in gains)
    hits = sum(g > 0 for g in gains[:k])
    assert found["precision"] == pytest.approx(hits / k)
    if not relevant:
        assert math.isnan(found["ndcg"])
        assert math.isnan(found["recall"])
        assert math.isnan(found["reciprocal_rank"])
        return

    def dcg(values):
        return sum(g / math.log2(rank + 1) for rank, g in enumerate(values[:k], start=1))

    assert found["ndcg"] == pytest.approx(dcg(gains) / dcg(sorted(gains, reverse=True)))
    assert found["recall"] == pytest.approx(hits / relevant)
    first = next((rank for rank, g in enumerate(gains[:k], start=1) if g > 0), math.inf)
    assert found["reciprocal_rank"] == pytest.approx(1 / first)


@pytest.mark.parametrize(
    ("rankings", "judgements", "k", "complaint"),
    [
        ({}, {}, 1, "judgements is"),
        ({"p": ["a"]}, {"q": {"a": 1}}, 1, r"rankings\['p'\] is 'p'; allowed: queries that have judgements"),
        ({"q": ["a", "a"]}, {"q": {"a": 1}}, 1, r"rankings\['q'\] is .*each passage once"),
        ({"q": ["a"]}, {"q": {"a": -1}}, 1, r"judgements\['q'\]\['a'\] is -1"),
        ({"q": ["a"]}, {"q": {"a": 0.5}}, 1, r"judgements\['q'\]\['a'\] is 0.5"),
        ({"q": ["a"]}, {"q": {"a": 1}}, 0, "k is 0"),
    ],
)
def test_bad_input_is_refused(rankings, judgements, k, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        ranking_metrics(rankings, judgements, k=k)
