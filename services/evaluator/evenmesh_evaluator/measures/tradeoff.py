"""Tradeoff of utility or relevance against disparity."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire import checks
from evenmesh.wire.errors import InvalidField
from evenmesh_core.intervals import tradeoff_intervals
from evenmesh_core.utility import fairness_intervals
from evenmesh_evaluator import fields
from evenmesh_evaluator.measures import bootstraps
from evenmesh_kit.compute.steps import Check, unchecked

MAX_POINTS: Final = 100_000
"""Most points of one tradeoff."""
_POINTS_AT_ONCE: Final = 1000
_SLACK: Final = 1e-9
"""Rounding error allowed above a fraction of 1."""


def tradeoff(request: pb.EvaluateTradeoffRequest, check: Check = unchecked) -> pb.EvaluateTradeoffResponse:
    """Measure slope and area of a tradeoff, and y at five levels of fairness (Kim & Diaz 2025, section 5).

    An unset coordinate of a point is undefined. The levels need a baseline: the mean y of the deterministic
    system, or the y of the same query without sampling.

    Args:
        request: the points.
        check: called repeatedly; an exception of it ends the computation.
    """
    count = fields.sized("points", len(request.points), 1, MAX_POINTS)
    x, y, own = np.full(count, math.nan), np.full(count, math.nan), np.full(count, math.nan)
    queries = []
    for index, point in enumerate(request.points):
        if index % _POINTS_AT_ONCE == 0:
            check()
        queries.append(fields.identifier(f"points[{index}].query_id", point.query_id))
        if point.HasField("x"):
            if not 0 <= point.x <= 1 + _SLACK:
                raise InvalidField(f"points[{index}].x", f"must be in [0, 1], got {point.x}")
            x[index] = point.x
        if point.HasField("y"):
            y[index] = _from_zero(f"points[{index}].y", point.y)
        if point.HasField("baseline"):
            own[index] = _from_zero(f"points[{index}].baseline", point.baseline)
    options = bootstraps.read_options("bootstrap", request.bootstrap)
    baseline = _from_zero("baseline", request.baseline) if request.HasField("baseline") else None

    curve = tradeoff_intervals(
        queries,
        x,
        y,
        level=options.level,
        method=options.method,
        num_resamples=options.num_resamples,
        rng=options.seed,
        check=check,
    )
    response = pb.EvaluateTradeoffResponse(
        slope=bootstraps.interval(curve.slope),
        intercept=bootstraps.defined(curve.fit.intercept),
        auc=bootstraps.interval(curve.auc),
        num_points=curve.fit.points,
        num_undefined=curve.fit.undefined,
        auc_from=bootstraps.defined(curve.fit.auc_from),
        auc_to=bootstraps.defined(curve.fit.auc_to),
    )
    if baseline is not None or not np.isnan(own).all():
        paired = fairness_intervals(x, y, own)
        levels = fairness_intervals(x, y, 0.0 if baseline is None else baseline)
        for at, value in enumerate(levels.values.tolist()):
            response.fairness_intervals.add(
                low=levels.edges[at],
                high=levels.edges[at + 1],
                value=None if baseline is None else bootstraps.defined(value),
                count=int(levels.counts[at]),
                paired_value=bootstraps.defined(float(paired.values[at])),
                paired_count=int(paired.counts[at]),
            )
    return response


def _from_zero(field: str, value: float) -> float:
    return checks.between(field, checks.finite(field, value), 0, math.inf)
