"""Expected exposure of items and of groups of items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire import checks
from evenmesh.wire.errors import InvalidField
from evenmesh_core.arrays import FloatArray
from evenmesh_core.exposure import (
    BrowsingModel,
    GroupExposure,
    exposure_metrics,
    group_exposure,
    position_weights,
    rbp,
    reciprocal_rank,
    system_exposure,
    top_k,
)
from evenmesh_evaluator import fields
from evenmesh_evaluator.measures.bootstraps import defined
from evenmesh_kit.compute.steps import Check, unchecked

_SUM_SLACK: Final = 1e-6


def exposure(request: pb.EvaluateExposureRequest, check: Check = unchecked) -> pb.EvaluateExposureResponse:
    """Measure the expected exposure of rankings, or of given exposure (Kim & Diaz 2025, section 3.3.1).

    Fields that are undefined without a useful item, and those of groups without groups, stay unset.
    ``check`` is called before each step; an exception of it ends the computation.
    """
    check()
    n = len(request.usefulness)
    if not n:
        raise InvalidField("usefulness", "must be one grade per item, none is given")
    usefulness = fields.numbers("usefulness", request.usefulness, 0, 1000)
    with_rankings, expected = request.HasField("rankings"), len(request.exposure)
    if with_rankings == bool(expected):
        raise InvalidField(
            "rankings", "must be given, or exposure in its place" + (", not both" * with_rankings)
        )
    if expected and expected != n:
        raise InvalidField("exposure", f"must be one per item, {n}, as usefulness has; {expected} are given")
    if with_rankings and not request.rankings.depth:
        raise InvalidField("rankings.depth", "must be in [1, 1000], got 0")
    rankings = fields.rankings("rankings", request.rankings, n) if with_rankings else None
    given = fields.numbers("exposure", request.exposure, 0, 1) if expected else None
    k = checks.between("k", request.k, 1, 1000)
    browsing = _browsing(request.browsing) if request.HasField("browsing") else top_k(k)
    probabilities = _probabilities(request.probabilities, None if rankings is None else len(rankings))
    check()
    labels = _groups(request.groups, n)
    check()

    if rankings is not None and probabilities is not None:
        given = system_exposure(rankings[:, :k], n, browsing, probabilities=probabilities)
        rankings = None
    items = exposure_metrics(rankings, usefulness, k=k, browsing=browsing, exposure=given)
    response = pb.EvaluateExposureResponse(
        exposure=items.exposure,
        target=items.target,
        ee_d=items.ee_d,
        ee_d_norm=items.ee_d_norm,
        ee_d_bound=items.ee_d_bound,
        ee_r=defined(items.ee_r),
        ee_l=items.ee_l if usefulness.any() else None,
        ee_r_norm=defined(items.ee_r_norm),
    )
    check()
    if labels is not None:
        _write_groups(response, group_exposure(items.exposure, items.target, labels))
    return response


def _write_groups(response: pb.EvaluateExposureResponse, groups: GroupExposure) -> None:
    for at, name in enumerate(groups.labels):
        response.groups.add(
            name=str(name),
            exposure=groups.exposure[at],
            target=groups.target[at],
            ratio=defined(groups.ratio[at]),
            difference=groups.difference[at],
        )
    worst_ratio = defined(groups.worst_ratio)
    if worst_ratio is not None:
        response.worst_group_ratio = worst_ratio
    response.worst_group_difference = groups.worst_difference


def _probabilities(values: Sequence[float], rankings: int | None) -> FloatArray | None:
    if not values:
        return None
    field = "probabilities"
    if rankings is None:
        raise InvalidField(field, "must be empty without rankings")
    if len(values) != rankings:
        raise InvalidField(field, f"must be one per ranking, {rankings}; {len(values)} are given")
    read = fields.numbers(field, values, 0, 1)
    total = float(np.sum(read))
    if abs(total - 1) > _SUM_SLACK:
        raise InvalidField(field, f"must sum to 1, sums to {total:g}")
    return read


def _groups(values: Sequence[str], items: int) -> list[str] | None:
    if not values:
        return None
    if len(values) != items:
        raise InvalidField("groups", f"must be empty or one per item, {items}; {len(values)} are given")
    first: dict[str, int] = {}
    for index, name in enumerate(values):
        if first.setdefault(name, index) == index:
            fields.limited(f"groups[{index}]", name, checks.MAX_ATTRIBUTE_BYTES)
    return list(values)


def _browsing(model: pb.BrowsingModel) -> BrowsingModel:
    match model.WhichOneof("model"):
        case "top_k":
            return top_k(checks.between("browsing.top_k", model.top_k, 1, 1000))
        case "rbp_patience":
            if not 0 <= model.rbp_patience < 1:
                raise InvalidField("browsing.rbp_patience", f"must be in [0, 1), got {model.rbp_patience}")
            return rbp(model.rbp_patience)
        case "reciprocal_rank":
            if not model.reciprocal_rank:
                raise InvalidField("browsing.reciprocal_rank", "must be true where it is chosen")
            return reciprocal_rank
        case "position_weights":
            field = "browsing.position_weights.weights"
            if not model.position_weights.weights:
                raise InvalidField(field, "must be at least one")
            return position_weights(fields.numbers(field, model.position_weights.weights, 0, 1))
    raise InvalidField(
        "browsing.model", "must be one of top_k, rbp_patience, reciprocal_rank, position_weights"
    )
