"""Exposure and utility for callers, with every value derived by hand."""

from __future__ import annotations

import pytest

from ragmesh.common.v1 import common_pb2
from ragmesh.evaluator.v1 import evaluator_service_pb2 as pb
from services.evaluator import codec, evaluation


def _exposure(request: pb.EvaluateExposureRequest) -> pb.EvaluateExposureResponse:
    return codec.exposure_response(evaluation.exposure(codec.exposure_question(request)))


def _utility(request: pb.EvaluateUtilityRequest) -> pb.EvaluateUtilityResponse:
    return codec.utility_response(evaluation.utilities(codec.utility_question(request)))


def test_exposure_of_rankings() -> None:
    # Rankings (0, 1) and (2, 1), k = 1: ε = (1/2, 0, 1/2). Item 0 is useful: ε* = (1, 0, 0).
    # EE-D = 1/4 + 1/4, EE-R = 1/2, EE-L = 1/2 - 2·1/2 + 1.
    response = _exposure(
        pb.EvaluateExposureRequest(
            rankings=common_pb2.Rankings(depth=2, indices=[0, 1, 2, 1]), usefulness=[1, 0, 0], k=1
        )
    )
    assert list(response.exposure) == [0.5, 0, 0.5]
    assert list(response.target) == [1, 0, 0]
    assert (response.ee_d, response.ee_r, response.ee_l) == (0.5, 0.5, 0.5)
    assert (response.ee_d_norm, response.ee_r_norm) == (0.5, 0.5)


def test_exposure_in_place_of_rankings() -> None:
    # Exact inclusion probabilities (3/4, 1/4), k = 1: EE-D = 9/16 + 1/16, EE-R = 3/4.
    response = _exposure(pb.EvaluateExposureRequest(exposure=[0.75, 0.25], usefulness=[1, 0], k=1))
    assert (response.ee_d, response.ee_r) == (0.625, 0.75)


def test_graded_usefulness_with_reciprocal_rank() -> None:
    # Grades 1, 2, 0 under 1/i: the target puts grade 2 first (1), grade 1 second (1/2), the other third
    # (1/3).
    response = _exposure(
        pb.EvaluateExposureRequest(
            rankings=common_pb2.Rankings(depth=3, indices=[0, 1, 2]),
            usefulness=[1, 2, 0],
            k=3,
            browsing=pb.BrowsingModel(reciprocal_rank=True),
        )
    )
    assert list(response.target) == pytest.approx([1 / 2, 1, 1 / 3])
    assert response.ee_r == pytest.approx(1 * 1 / 2 + 1 / 2 * 1 + 1 / 3 * 1 / 3)


def test_without_useful_items_relevance_is_unset() -> None:
    response = _exposure(
        pb.EvaluateExposureRequest(rankings=common_pb2.Rankings(depth=1, indices=[0]), usefulness=[0, 0], k=1)
    )
    assert response.ee_d == 1.0
    assert not response.HasField("ee_r")
    assert not response.HasField("ee_l")
    assert not response.HasField("ee_r_norm")


def test_expected_utility_with_weights() -> None:
    # Exact match 1 and 0 with weights 3/4 and 1/4, over u_max 1/2: 3/4 and 3/2.
    response = _utility(
        pb.EvaluateUtilityRequest(
            answers=["The Rhine!", "Elbe"],
            references=["rhine"],
            metric=pb.UTILITY_METRIC_EXACT_MATCH,
            weights=[0.75, 0.25],
            u_max=0.5,
        )
    )
    assert list(response.utilities) == [1, 0]
    assert response.expected_utility == 0.75
    assert response.normalized_expected_utility == 1.5


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        # "red green blue" against "red green": common 2 of 3 and of 2, F1 = 2·2/(3 + 2).
        (pb.UTILITY_METRIC_UNSPECIFIED, 4 / 5),
        (pb.UTILITY_METRIC_TOKEN_F1, 4 / 5),
        (pb.UTILITY_METRIC_ROUGE1, 4 / 5),
        # Word pairs: {red green, green blue} and {red green}: F1 = 2·1/(2 + 1).
        (pb.UTILITY_METRIC_ROUGE2, 2 / 3),
        (pb.UTILITY_METRIC_ROUGE_L, 4 / 5),
        (pb.UTILITY_METRIC_EXACT_MATCH, 0),
        (pb.UTILITY_METRIC_ACCURACY, 0),
    ],
)
def test_every_metric(metric: pb.UtilityMetric.ValueType, expected: float) -> None:
    response = _utility(
        pb.EvaluateUtilityRequest(answers=["red green blue"], references=["red green"], metric=metric)
    )
    assert response.expected_utility == pytest.approx(expected)
    assert not response.HasField("normalized_expected_utility")
