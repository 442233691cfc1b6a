"""Tradeoffs of utility or relevance against disparity."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from meshkit import checks
from meshkit.errors import InvalidField
from ragmesh.evaluator.v1 import evaluator_service_pb2 as pb
from services.evaluator.codec import fields
from services.evaluator.codec.measuring import intervals
from services.evaluator.evaluation.tradeoffs import TradeoffMeasured, TradeoffQuestion

MAX_POINTS: Final = 100_000
"""Most points of one tradeoff."""
MAX_RESAMPLED: Final = 1_000_000_000
"""Most points of all resamples together, about half a minute; BCa adds a resample for each query."""
_SLACK: Final = 1e-9
"""What rounding may add to a fraction that is at most 1."""


def tradeoff_question(request: pb.EvaluateTradeoffRequest) -> TradeoffQuestion:
    """Reads the points of a tradeoff; an unset coordinate is undefined.

    Raises:
        InvalidField: a bound of the contract is broken.
    """
    count = len(request.points)
    if not 1 <= count <= MAX_POINTS:
        raise InvalidField("points", f"must be 1 to {MAX_POINTS}, {count} are given")
    x, y = np.full(count, math.nan), np.full(count, math.nan)
    queries = []
    for index, point in enumerate(request.points):
        queries.append(fields.identifier(f"points[{index}].query_id", point.query_id))
        if point.HasField("x"):
            if not 0 <= point.x <= 1 + _SLACK:
                raise InvalidField(f"points[{index}].x", f"must be in [0, 1], got {point.x}")
            x[index] = point.x
        if point.HasField("y"):
            y[index] = _from_zero(f"points[{index}].y", point.y)
    resampling = intervals.resampling("bootstrap", request.bootstrap)
    resamples = resampling.num_resamples + (len(set(queries)) if resampling.method == "bca" else 0)
    if count * resamples > MAX_RESAMPLED:
        raise InvalidField(
            "bootstrap",
            f"{count} points × {resamples} resamples are more than {MAX_RESAMPLED}: ask for the percentile "
            "method or fewer resamples",
        )
    return TradeoffQuestion(
        queries=queries,
        x=x,
        y=y,
        resampling=resampling,
        baseline=_from_zero("baseline", request.baseline) if request.HasField("baseline") else None,
    )


def tradeoff_response(measured: TradeoffMeasured) -> pb.EvaluateTradeoffResponse:
    """Writes the curve and, where there was a baseline, five levels of fairness."""
    fit = measured.curve.fit
    response = pb.EvaluateTradeoffResponse(
        slope=intervals.interval(measured.curve.slope),
        intercept=intervals.defined(fit.intercept),
        auc=intervals.interval(measured.curve.auc),
        num_points=fit.points,
        num_undefined=fit.undefined,
    )
    if (levels := measured.levels) is not None:
        for at, value in enumerate(levels.values.tolist()):
            response.fairness_intervals.add(
                low=levels.edges[at],
                high=levels.edges[at + 1],
                value=intervals.defined(value),
                count=int(levels.counts[at]),
            )
    return response


def _from_zero(field: str, value: float) -> float:
    return checks.between(field, checks.finite(field, value), 0, math.inf)
