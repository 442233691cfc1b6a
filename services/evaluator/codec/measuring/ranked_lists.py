"""Ranked lists and their groups."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal

from meshkit import checks
from meshkit.errors import InvalidField
from ragcore.group_fairness import Attribute, RankedListFairness
from ragmesh.evaluator.v1 import evaluator_service_pb2 as pb
from services.evaluator.codec import fields
from services.evaluator.codec.measuring import groups
from services.evaluator.evaluation.ranked_lists import RankedListQuestion

MAX_DOCUMENTS: Final = 1000
"""Most documents of a list."""
RELEVANCE: Final = "utility"
"""Key of the weight of relevance beside those of the attributes."""

_Request = pb.EvaluateRankedListRequest
_UTILITIES: Final[dict[int, Literal["err", "irbu"]]] = {
    _Request.UTILITY_MODEL_UNSPECIFIED: "err",
    _Request.UTILITY_MODEL_ERR: "err",
    _Request.UTILITY_MODEL_IRBU: "irbu",
}


def ranked_list_question(request: pb.EvaluateRankedListRequest) -> RankedListQuestion:
    """Reads a ranked list and its targets.

    Raises:
        InvalidField: a bound of the contract is broken.
    """
    count = len(request.documents)
    if not 1 <= count <= MAX_DOCUMENTS:
        raise InvalidField("documents", f"must be 1 to {MAX_DOCUMENTS}, {count} are given")
    if not 0 < request.max_gain <= 1000:
        raise InvalidField("max_gain", f"must be in (0, 1000], got {request.max_gain}")
    if request.utility not in _UTILITIES:
        names = fields.names(_Request.UtilityModel.keys())
        raise InvalidField("utility", f"must be one of {names}, got {request.utility}")
    if RELEVANCE in request.attributes:
        raise InvalidField(f"attributes[{RELEVANCE!r}]", "must have another name: the weights mean relevance")
    attributes = groups.attributes(request.attributes)
    gains = [
        checks.between(f"documents[{index}].gain", document.gain, 0, request.max_gain)
        for index, document in enumerate(request.documents)
    ]
    return RankedListQuestion(
        gains=gains,
        memberships={
            name: [
                _membership(f"documents[{index}].membership", document, name, attribute)
                for index, document in enumerate(request.documents)
            ]
            for name, attribute in attributes.items()
        },
        attributes=attributes,
        max_gain=request.max_gain,
        utility=_UTILITIES[request.utility],
        weights=_weights(request.weights, attributes),
    )


def ranked_list_response(fairness: RankedListFairness) -> pb.EvaluateRankedListResponse:
    """Writes relevance and group fairness."""
    return pb.EvaluateRankedListResponse(
        score=fairness.score,
        relevance=fairness.relevance,
        group_fairness=dict(fairness.group_fairness),
        abandonment=fairness.abandonment,
    )


def _membership(field: str, document: _Request.Document, name: str, attribute: Attribute) -> list[float]:
    size = len(attribute.gold)
    if not document.gain:
        return [0.0] * size  # not looked at
    if name not in document.membership:
        raise InvalidField(field, f"must have the attribute {name!r}")
    shares = groups.shares(f"{field}[{name!r}]", document.membership[name])
    if len(shares) != size:
        raise InvalidField(f"{field}[{name!r}]", f"must be {size} groups as its target, has {len(shares)}")
    return shares


def _weights(weights: Mapping[str, float], attributes: Mapping[str, Attribute]) -> dict[str, float] | None:
    if not weights:
        return None
    wanted = {RELEVANCE, *attributes}
    if set(weights) != wanted:
        raise InvalidField("weights", f"must be empty or one for each of {', '.join(sorted(wanted))}")
    return {
        name: checks.between(f"weights[{name!r}]", checks.finite(f"weights[{name!r}]", value), 0, math.inf)
        for name, value in weights.items()
    }
