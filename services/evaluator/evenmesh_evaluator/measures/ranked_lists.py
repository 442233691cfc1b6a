"""Group fairness and relevance of a ranked list."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire import checks
from evenmesh.wire.choices import Choices
from evenmesh.wire.errors import InvalidField
from evenmesh_core import group_fairness
from evenmesh_core.group_fairness import Attribute
from evenmesh_evaluator import fields
from evenmesh_evaluator.measures import groups
from evenmesh_kit.compute.steps import Check, unchecked

MAX_DOCUMENTS: Final = 1000
"""Most documents of a list."""
RELEVANCE: Final = "utility"
"""Key of the weight of relevance beside those of the attributes."""

_Request = pb.EvaluateRankedListRequest
_UTILITIES: Final = Choices[Literal["err", "irbu"]](_Request.UtilityModel.DESCRIPTOR, ("err", "irbu"), "err")


def ranked_list(
    request: pb.EvaluateRankedListRequest, check: Check = unchecked
) -> pb.EvaluateRankedListResponse:
    """Measure the group fairness and relevance (GFR) of a ranked list (Sakai 2023, equation 1).

    ``check`` is called before each step; an exception of it ends the computation.
    """
    check()
    fields.sized("documents", len(request.documents), 1, MAX_DOCUMENTS)
    if not 0 < request.max_gain <= 1000:
        raise InvalidField("max_gain", f"must be in (0, 1000], got {request.max_gain}")
    utility = _UTILITIES.read("utility", request.utility)
    if RELEVANCE in request.attributes:
        raise InvalidField(f"attributes[{RELEVANCE!r}]", "must have another name: the weights mean relevance")
    attributes = groups.attributes(request.attributes)
    gains = [
        checks.between(f"documents[{index}].gain", document.gain, 0, request.max_gain)
        for index, document in enumerate(request.documents)
    ]
    found = group_fairness.ranked_list(
        gains,
        {
            name: [
                _membership(f"documents[{index}].membership", document, name, attribute)
                for index, document in _checked(request.documents, check)
            ]
            for name, attribute in attributes.items()
        },
        attributes,
        max_gain=request.max_gain,
        utility=utility,
        weights=_weights(request.weights, attributes),
        check=check,
    )
    return pb.EvaluateRankedListResponse(
        score=found.score,
        relevance=found.relevance,
        group_fairness=dict(found.group_fairness),
        abandonment=found.abandonment,
    )


def _checked(documents: Iterable[_Request.Document], check: Check) -> Iterator[tuple[int, _Request.Document]]:
    for index, document in enumerate(documents):
        check()
        yield index, document


def _membership(field: str, document: _Request.Document, name: str, attribute: Attribute) -> list[float]:
    size = len(attribute.gold)
    if not document.gain:
        return [0.0] * size  # not used
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
