"""Rankings against judgements, and ranked lists with groups."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField
from evenmesh_core.group_fairness import Attribute, ranked_list
from evenmesh_core.ranking_metrics import ranking_metrics
from evenmesh_evaluator import measures

_Query = pb.EvaluateRankingsRequest.Query
_Document = pb.EvaluateRankedListRequest.Document


def _rankings(request: pb.EvaluateRankingsRequest) -> pb.EvaluateRankingsResponse:
    return measures.rankings(request)


def _ranked_list(request: pb.EvaluateRankedListRequest) -> pb.EvaluateRankedListResponse:
    return measures.ranked_list(request)


def _queries() -> pb.EvaluateRankingsRequest:
    return pb.EvaluateRankingsRequest(
        k=2,
        queries=[
            _Query(query_id="z", ranking=["a", "b", "c"], grades={"b": 1, "c": 2}),
            _Query(query_id="a", ranking=["a"], grades={"x": 0}),
            _Query(query_id="m", ranking=[], grades={"a": 1}),
        ],
    )


def test_metrics_come_in_the_order_of_the_request() -> None:
    response = _rankings(_queries())
    assert [one.query_id for one in response.queries] == ["z", "a", "m"]
    first, unjudged, empty = response.queries
    # b is second of two: DCG 1/log2(3); ideal 2/log2(2) + 1/log2(3).
    assert first.ndcg == pytest.approx((1 / math.log2(3)) / (2 + 1 / math.log2(3)))
    assert (first.reciprocal_rank, first.recall, first.precision) == (1 / 2, 1 / 2, 1 / 2)
    assert [unjudged.HasField(name) for name in ("ndcg", "reciprocal_rank", "recall")] == [False] * 3
    assert unjudged.precision == 0
    assert (empty.ndcg, empty.reciprocal_rank, empty.recall, empty.precision) == (0, 0, 0, 0)
    # The query without relevant passages is left out of all but precision.
    assert (response.recall.mean, response.recall.count, response.recall.undefined) == ((1 / 2 + 0) / 2, 2, 1)
    assert (response.precision.mean, response.precision.count) == (pytest.approx((1 / 2 + 0 + 0) / 3), 3)
    assert response.recall.low < response.recall.mean < response.recall.high


def test_one_query_has_no_interval() -> None:
    request = pb.EvaluateRankingsRequest(k=1, queries=[_Query(query_id="q", ranking=["a"], grades={"a": 1})])
    response = _rankings(request)
    assert response.ndcg.mean == 1.0
    assert not response.ndcg.HasField("low")


def test_rankings_are_those_of_the_science() -> None:
    request = _queries()
    expected = ranking_metrics(
        {one.query_id: list(one.ranking) for one in request.queries},
        {one.query_id: dict(one.grades) for one in request.queries},
        k=2,
    )
    response = _rankings(request)
    for name in ("ndcg", "reciprocal_rank", "recall", "precision"):
        values = [
            getattr(one, name) if name == "precision" or one.HasField(name) else math.nan
            for one in response.queries
        ]
        assert values == pytest.approx(getattr(expected, name), nan_ok=True, abs=0)


@pytest.mark.parametrize(
    ("field", "broken"),
    [
        ("queries", lambda m: m.ClearField("queries")),
        ("queries[1].query_id", lambda m: setattr(m.queries[1], "query_id", "z")),
        ("queries[1].query_id", lambda m: m.queries[1].ClearField("query_id")),
        ("queries[0].ranking[3]", lambda m: m.queries[0].ranking.append("b")),
        ("queries[0].ranking[1]", lambda m: m.queries[0].ranking.__setitem__(1, "")),
        ("queries[0].grades['b']", lambda m: m.queries[0].grades.__setitem__("b", 1001)),
        ("k", lambda m: setattr(m, "k", 0)),
        ("k", lambda m: setattr(m, "k", 1001)),
    ],
)
def test_bounds_of_rankings(field: str, broken: Callable[[pb.EvaluateRankingsRequest], object]) -> None:
    request = _queries()
    broken(request)
    with pytest.raises(InvalidField) as caught:
        measures.rankings(request)
    assert caught.value.field == field


def test_too_many_queries() -> None:
    request = pb.EvaluateRankingsRequest(queries=[_Query(query_id="q")] * 10_001, k=1)
    with pytest.raises(InvalidField) as caught:
        measures.rankings(request)
    assert caught.value.field == "queries"


def _list() -> pb.EvaluateRankedListRequest:
    return pb.EvaluateRankedListRequest(
        documents=[
            _Document(gain=1, membership={"g": pb.Distribution(shares=[1, 0])}),
            _Document(gain=0),
            _Document(gain=2, membership={"g": pb.Distribution(shares=[0, 1])}),
        ],
        attributes={"g": pb.AttributeTarget(gold=pb.Distribution(shares=[0.5, 0.5]))},
        max_gain=2,
    )


def test_a_ranked_list() -> None:
    response = _ranked_list(_list())
    # Stops: 1/3, 0, 2/3; abandon: 1/3, 0, 2/3 · 2/3.
    assert list(response.abandonment) == pytest.approx([1 / 3, 0, 2 / 3 * 2 / 3])
    relevance = 1 / 3 * 1 + 4 / 9 * 1 / 3
    assert response.relevance == pytest.approx(relevance)
    # (1, 0) against (1/2, 1/2): DW_i = 1/4 each, RNOD √(1/4); both documents together are fair.
    fairness = 1 / 3 * (1 - math.sqrt(1 / 4)) + 4 / 9 * 1
    assert response.group_fairness["g"] == pytest.approx(fairness)
    assert response.score == pytest.approx((relevance + fairness) / 2)


def test_weights_and_the_other_utility() -> None:
    request = _list()
    request.utility = pb.EvaluateRankedListRequest.UTILITY_MODEL_IRBU
    request.weights.update({"utility": 1, "g": 0})
    assert _ranked_list(request).score == pytest.approx(1 / 3 * 0.99 + 4 / 9 * 0.99**3)


def test_relevance_alone() -> None:
    request = _list()
    request.attributes.clear()
    response = _ranked_list(request)
    assert response.score == response.relevance
    assert not response.group_fairness


def test_a_list_is_that_of_the_science() -> None:
    expected = ranked_list(
        [1, 0, 2], {"g": [[1, 0], [0, 0], [0, 1]]}, {"g": Attribute([0.5, 0.5])}, max_gain=2
    )
    response = _ranked_list(_list())
    assert (response.score, response.relevance) == (expected.score, expected.relevance)
    assert dict(response.group_fairness) == expected.group_fairness
    assert list(response.abandonment) == expected.abandonment.tolist()


@pytest.mark.parametrize(
    ("field", "broken"),
    [
        ("documents", lambda m: m.ClearField("documents")),
        ("documents", lambda m: m.documents.extend([_Document()] * 998)),
        ("documents[1].gain", lambda m: setattr(m.documents[1], "gain", 2.5)),
        ("documents[1].gain", lambda m: setattr(m.documents[1], "gain", math.nan)),
        ("documents[0].membership", lambda m: m.documents[0].ClearField("membership")),
        ("documents[0].membership['g']", lambda m: m.documents[0].membership["g"].shares.append(0)),
        ("documents[2].membership['g']", lambda m: m.documents[2].membership["g"].shares.append(1)),
        (
            "documents[0].membership['g'][0]",
            lambda m: m.documents[0].membership["g"].shares.__setitem__(0, 2),
        ),
        ("max_gain", lambda m: setattr(m, "max_gain", 0)),
        ("max_gain", lambda m: setattr(m, "max_gain", 1000.5)),
        ("utility", lambda m: setattr(m, "utility", 9)),
        ("weights", lambda m: m.weights.update({"g": 1})),
        ("weights['g']", lambda m: m.weights.update({"g": -1, "utility": 1})),
        ("weights['g']", lambda m: m.weights.update({"g": math.inf, "utility": 1})),
        ("attributes['g'].gold", lambda m: m.attributes["g"].gold.ClearField("shares")),
        ("attributes['h'].gold", lambda m: m.attributes["h"].gold.shares.append(1)),
        ("attributes['utility']", lambda m: m.attributes["utility"].gold.shares.extend([0.5, 0.5])),
    ],
)
def test_bounds_of_lists(field: str, broken: Callable[[pb.EvaluateRankedListRequest], object]) -> None:
    request = _list()
    broken(request)
    with pytest.raises(InvalidField) as caught:
        measures.ranked_list(request)
    assert caught.value.field == field
