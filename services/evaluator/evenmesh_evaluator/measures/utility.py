"""Utility of answers against references."""

from __future__ import annotations

from collections.abc import Sequence

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField
from evenmesh_core.answer_scores import best_scores, check_references
from evenmesh_core.arrays import FloatArray
from evenmesh_core.errors import InvalidInput
from evenmesh_core.utility import expected_utility, utility_gains
from evenmesh_evaluator import fields
from evenmesh_evaluator.domain import UtilityMetric
from evenmesh_kit.compute.steps import Check, unchecked


def utility(request: pb.EvaluateUtilityRequest, check: Check = unchecked) -> pb.EvaluateUtilityResponse:
    """Measure the utility of answers and its expectation (Kim & Diaz 2025, equations 7 and 25).

    Normalised utility needs the largest known utility, gains (algorithm 1) need the answer without any
    passage; both stay unset without.

    Args:
        request: the answers and references.
        check: called repeatedly; an exception of it ends the computation.
    """
    check()
    if not request.answers:
        raise InvalidField("answers", "must be at least one")
    if not request.references:
        raise InvalidField("references", "must be at least one")
    u_max = request.u_max if request.HasField("u_max") else None
    if u_max is not None and not 0 < u_max <= 1:
        raise InvalidField("u_max", f"must be in (0, 1], got {u_max}")
    metric = fields.METRICS.read("metric", request.metric)
    try:
        check_references(request.references, metric.value)
    except InvalidInput as error:
        raise InvalidField(error.argument, "must be a rating from 1 to 5") from error
    weights = fields.weights("weights", request.weights, len(request.answers), "answers")
    baseline = [request.baseline_answer] if request.HasField("baseline_answer") else []

    values = answer_utilities([*request.answers, *baseline], list(request.references), metric, check)
    utilities = values[: len(request.answers)]
    expected = expected_utility(utilities, weights)
    return pb.EvaluateUtilityResponse(
        utilities=utilities,
        expected_utility=expected,
        # Not clipped at 1: a caller's u_max need not be the largest.
        normalized_expected_utility=None if u_max is None else expected / u_max,
        gains=utility_gains(utilities, float(values[-1])) if baseline else None,
    )


def answer_utilities(
    answers: Sequence[str],
    references: Sequence[str],
    metric: UtilityMetric,
    check: Check = unchecked,
) -> FloatArray:
    """Return the utility of each answer in [0, 1] against the best-matching reference."""
    return best_scores(answers, references, metric.value, check=check)
