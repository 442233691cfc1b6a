"""Utility of answers."""

from __future__ import annotations

from meshkit.errors import InvalidField
from ragmesh.evaluator.v1 import evaluator_service_pb2 as pb
from services.evaluator.codec import fields
from services.evaluator.evaluation.utilities import UtilityMeasured, UtilityQuestion


def utility_question(request: pb.EvaluateUtilityRequest) -> UtilityQuestion:
    """Reads answers and references.

    Raises:
        InvalidField: a bound of the contract is broken.
    """
    if not request.answers:
        raise InvalidField("answers", "must be at least one")
    if not request.references:
        raise InvalidField("references", "must be at least one")
    u_max = request.u_max if request.HasField("u_max") else None
    if u_max is not None and not 0 < u_max <= 1:
        raise InvalidField("u_max", f"must be in (0, 1], got {u_max}")
    return UtilityQuestion(
        answers=list(request.answers),
        references=list(request.references),
        metric=fields.metric("metric", request.metric),
        weights=fields.weights("weights", request.weights, len(request.answers), "answers"),
        u_max=u_max,
        baseline=request.baseline_answer if request.HasField("baseline_answer") else None,
    )


def utility_response(measured: UtilityMeasured) -> pb.EvaluateUtilityResponse:
    """Writes utilities; what needs a largest utility or a baseline stays unset without."""
    return pb.EvaluateUtilityResponse(
        utilities=measured.utilities,
        expected_utility=measured.expected,
        normalized_expected_utility=measured.normalized,
        gains=measured.gains,
    )
