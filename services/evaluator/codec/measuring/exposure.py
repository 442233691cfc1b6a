"""Exposure of items and groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from meshkit import checks
from meshkit.errors import InvalidField
from ragcore.exposure import BrowsingModel, GroupExposure, position_weights, rbp, reciprocal_rank, top_k
from ragmesh.evaluator.v1 import evaluator_service_pb2 as pb
from services.evaluator.codec import fields
from services.evaluator.evaluation.exposures import ExposureMeasured, ExposureQuestion

_SUM_SLACK: Final = 1e-6


def exposure_question(request: pb.EvaluateExposureRequest) -> ExposureQuestion:
    """Reads rankings or exposure, and what was useful.

    Raises:
        InvalidField: a bound of the contract is broken.
    """
    n = len(request.usefulness)
    if not n:
        raise InvalidField("usefulness", "must be one grade per item, none is given")
    usefulness = fields.numbers("usefulness", request.usefulness, 0, 1000)
    given, expected = request.HasField("rankings"), len(request.exposure)
    if given == bool(expected):
        raise InvalidField("rankings", "must be given, or exposure in its place" + (", not both" * given))
    if expected and expected != n:
        raise InvalidField("exposure", f"must be one per item, {n}, as usefulness has; {expected} are given")
    if given and not request.rankings.depth:
        raise InvalidField("rankings.depth", "must be in [1, 1000], got 0")
    rankings = fields.rankings("rankings", request.rankings, n) if given else None
    return ExposureQuestion(
        rankings=rankings,
        exposure=fields.numbers("exposure", request.exposure, 0, 1) if expected else None,
        usefulness=usefulness,
        k=checks.between("k", request.k, 1, 1000),
        browsing=_browsing(request.browsing) if request.HasField("browsing") else None,
        probabilities=_probabilities(request.probabilities, None if rankings is None else len(rankings)),
        groups=_groups(request.groups, n),
    )


def exposure_response(measured: ExposureMeasured) -> pb.EvaluateExposureResponse:
    """Writes exposure; what is undefined without a useful item or without groups stays unset."""
    items = measured.items
    useful = not math.isnan(items.ee_r)
    response = pb.EvaluateExposureResponse(
        exposure=items.exposure,
        target=items.target,
        ee_d=items.ee_d,
        ee_d_norm=items.ee_d_norm,
        ee_d_bound=items.ee_d_bound,
        ee_r=items.ee_r if useful else None,
        ee_l=items.ee_l if useful else None,
        ee_r_norm=None if math.isnan(items.ee_r_norm) else items.ee_r_norm,
    )
    if measured.groups is not None:
        _write_groups(response, measured.groups)
    return response


def _write_groups(response: pb.EvaluateExposureResponse, groups: GroupExposure) -> None:
    for at, name in enumerate(groups.labels):
        ratio = float(groups.ratio[at])
        response.groups.add(
            name=str(name),
            exposure=groups.exposure[at],
            target=groups.target[at],
            ratio=None if math.isnan(ratio) else ratio,
            difference=groups.difference[at],
        )
    if not math.isnan(groups.worst_ratio):
        response.worst_group_ratio = groups.worst_ratio
    response.worst_group_difference = groups.worst_difference


def _probabilities(values: Sequence[float], rankings: int | None) -> list[float] | None:
    if not values:
        return None
    field = "probabilities"
    if rankings is None:
        raise InvalidField(field, "must be empty without rankings")
    if len(values) != rankings:
        raise InvalidField(field, f"must be one per ranking, {rankings}; {len(values)} are given")
    total = float(np.sum(fields.numbers(field, values, 0, 1)))
    if abs(total - 1) > _SUM_SLACK:
        raise InvalidField(field, f"must sum to 1, sums to {total:g}")
    return list(values)


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
    kind = model.WhichOneof("model")
    if kind == "top_k":
        return top_k(checks.between("browsing.top_k", model.top_k, 1, 1000))
    if kind == "rbp_patience":
        if not 0 <= model.rbp_patience < 1:
            raise InvalidField("browsing.rbp_patience", f"must be in [0, 1), got {model.rbp_patience}")
        return rbp(model.rbp_patience)
    if kind == "reciprocal_rank":
        if not model.reciprocal_rank:
            raise InvalidField("browsing.reciprocal_rank", "must be true where it is chosen")
        return reciprocal_rank
    if kind == "position_weights":
        field = "browsing.position_weights.weights"
        if not model.position_weights.weights:
            raise InvalidField(field, "must be at least one")
        return position_weights(fields.numbers(field, model.position_weights.weights, 0, 1))
    raise InvalidField(
        "browsing.model", "must be one of top_k, rbp_patience, reciprocal_rank, position_weights"
    )
