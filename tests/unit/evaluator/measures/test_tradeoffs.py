"""Tradeoffs: curves, levels, intervals and bounds."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField
from evenmesh_core.intervals import tradeoff_intervals
from evenmesh_evaluator import cost, measures


def _never() -> None:
    pass


def _tradeoff(request: pb.EvaluateTradeoffRequest) -> pb.EvaluateTradeoffResponse:
    return measures.tradeoff(request, _never)


def _request() -> pb.EvaluateTradeoffRequest:
    """Three queries at x = 0.1, 0.5 and 1, with y above and below x / 2; one point undefined."""
    points = [
        pb.TradeoffPoint(query_id=f"q{query}", x=x, y=x / 2 + (query - 1) / 10)
        for query in range(3)
        for x in (0.25, 0.5, 1.0)
        if x / 2 + (query - 1) / 10 >= 0
    ]
    points.append(pb.TradeoffPoint(query_id="q9", x=0.5))
    return pb.EvaluateTradeoffRequest(points=points, bootstrap=pb.Bootstrap(num_resamples=200, seed=7))


def test_curve_and_levels() -> None:
    request = _request()
    request.baseline = 0.5
    response = _tradeoff(request)
    assert response.slope.value == pytest.approx(1 / 2)
    assert response.intercept == pytest.approx(0, abs=1e-12)
    # y is 1/8 at x = 1/4, 1/4 at 1/2, 1/2 at 1.
    area = 1 / 4 * (1 / 8 + 1 / 4) / 2 + 1 / 2 * (1 / 4 + 1 / 2) / 2
    assert response.auc.value == pytest.approx(area / (1 - 1 / 4))
    assert (response.auc_from, response.auc_to) == (0.25, 1.0)
    assert (response.num_points, response.num_undefined) == (9, 1)
    assert response.slope.level == response.auc.level == 0.95
    assert response.auc.low < response.auc.value < response.auc.high
    # x = 1 belongs to no level, 1/4 to the second, 1/2 to the third.
    assert [(one.low, one.high, one.count) for one in response.fairness_intervals] == [
        (0.0, 0.2, 0),
        (0.2, 0.4, 3),
        (0.4, 0.6, 3),
        (0.6, 0.8, 0),
        (0.8, 1.0, 0),
    ]
    assert [one.HasField("value") for one in response.fairness_intervals] == [False, True, True, False, False]
    assert response.fairness_intervals[1].value == pytest.approx(1 / 8 - 1 / 2)
    assert not any(one.HasField("paired_value") for one in response.fairness_intervals)


def test_levels_against_the_same_query() -> None:
    """Of the three points at x = 1/4, two have a baseline: 0.025 − 0.5 and 0.225 − 0.3."""
    request = _request()
    for point, baseline in ((request.points[0], 0.5), (request.points[-4], 0.3)):
        assert point.x == 0.25
        point.baseline = baseline
    response = _tradeoff(request)
    level = response.fairness_intervals[1]
    assert (level.count, level.paired_count, level.HasField("value")) == (3, 2, False)
    ys = request.points[0].y, request.points[-4].y
    assert level.paired_value == pytest.approx(((ys[0] - 0.5) + (ys[1] - 0.3)) / 2)


@pytest.mark.parametrize(
    ("method", "name"),
    [
        (pb.INTERVAL_METHOD_UNSPECIFIED, "bca"),
        (pb.INTERVAL_METHOD_BCA, "bca"),
        (pb.INTERVAL_METHOD_PERCENTILE, "percentile"),
    ],
)
def test_intervals_are_those_of_the_science(method: pb.IntervalMethod.ValueType, name: str) -> None:
    request = _request()
    request.bootstrap.method = method
    request.bootstrap.level = 0.9
    points = request.points
    expected = tradeoff_intervals(
        [point.query_id for point in points],
        [point.x if point.HasField("x") else math.nan for point in points],
        [point.y if point.HasField("y") else math.nan for point in points],
        level=0.9,
        method=name,
        num_resamples=200,
        rng=7,
    )
    response = _tradeoff(request)
    for wire, science in ((response.slope, expected.slope), (response.auc, expected.auc)):
        assert (wire.value, wire.level) == (science.value, 0.9)
        assert wire.HasField("low") is not math.isnan(science.low)
        assert math.isnan(science.low) or (wire.low, wire.high) == (science.low, science.high)


def test_undefined_statistics_stay_unset() -> None:
    response = _tradeoff(
        pb.EvaluateTradeoffRequest(
            points=[pb.TradeoffPoint(query_id="q", x=0.5, y=1), pb.TradeoffPoint(query_id="r")]
        )
    )
    assert not response.auc.HasField("value")
    assert (response.auc_from, response.auc_to) == (0.5, 0.5)
    assert not response.slope.HasField("value")
    assert not response.HasField("intercept")
    assert not response.fairness_intervals
    nothing = _tradeoff(pb.EvaluateTradeoffRequest(points=[pb.TradeoffPoint(query_id="q", y=1)], baseline=0))
    assert not nothing.auc.HasField("value")
    assert not nothing.HasField("auc_from")
    assert (nothing.num_points, nothing.num_undefined) == (0, 1)
    assert len(nothing.fairness_intervals) == 5


@pytest.mark.parametrize(
    ("field", "broken"),
    [
        ("points", lambda m: m.ClearField("points")),
        ("points[1].query_id", lambda m: m.points[1].ClearField("query_id")),
        ("points[1].x", lambda m: setattr(m.points[1], "x", 1.1)),
        (
            "bootstrap",  # 10,000 points × (100,000 resamples + 10,000 queries)
            lambda m: (
                m.points.extend(pb.TradeoffPoint(query_id=f"n{i}", x=0.5, y=1) for i in range(10_000)),
                setattr(m.bootstrap, "num_resamples", 100_000),
            ),
        ),
        ("points[1].x", lambda m: setattr(m.points[1], "x", math.nan)),
        ("points[0].y", lambda m: setattr(m.points[0], "y", -0.1)),
        ("points[0].y", lambda m: setattr(m.points[0], "y", math.inf)),
        ("baseline", lambda m: setattr(m, "baseline", -1)),
        ("bootstrap.method", lambda m: setattr(m.bootstrap, "method", 7)),
        ("bootstrap.num_resamples", lambda m: setattr(m.bootstrap, "num_resamples", 99)),
        ("bootstrap.num_resamples", lambda m: setattr(m.bootstrap, "num_resamples", 100_001)),
        ("bootstrap.level", lambda m: setattr(m.bootstrap, "level", 1)),
        ("bootstrap.level", lambda m: setattr(m.bootstrap, "level", math.nan)),
        ("bootstrap.seed", lambda m: setattr(m.bootstrap, "seed", 2**63)),
    ],
)
def test_bounds(field: str, broken: Callable[[pb.EvaluateTradeoffRequest], object]) -> None:
    request = _request()
    broken(request)
    with pytest.raises(InvalidField) as caught:
        cost.of(request)
        measures.tradeoff(request)
    assert caught.value.field == field


def test_too_many_points() -> None:
    request = pb.EvaluateTradeoffRequest(points=[pb.TradeoffPoint(query_id="q")] * 100_001)
    with pytest.raises(InvalidField) as caught:
        measures.tradeoff(request)
    assert caught.value.field == "points"


def test_abandoned_intervals_end() -> None:
    class GoneError(Exception):
        pass

    asked = []

    def gone() -> None:
        asked.append(None)
        if len(asked) == 5:
            raise GoneError

    with pytest.raises(GoneError):
        measures.tradeoff(_request(), gone)
    assert len(asked) == 5
