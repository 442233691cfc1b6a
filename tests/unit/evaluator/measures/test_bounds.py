"""Bounds of measure requests: each broken bound names its field."""

from __future__ import annotations

import pytest

from evenmesh.common.v1 import common_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField
from evenmesh_evaluator import measures


def _exposure(**changes: object) -> pb.EvaluateExposureRequest:
    request = pb.EvaluateExposureRequest(
        rankings=common_pb2.Rankings(depth=2, indices=[0, 1]), usefulness=[1, 0, 0], k=2
    )
    for name, value in changes.items():
        request.ClearField(name)  # type: ignore[arg-type]  # names are checked by the parameters below
        if value is not None:
            request.MergeFrom(pb.EvaluateExposureRequest(**{name: value}))  # type: ignore[arg-type]
    return request


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("k", {"k": 0}),
        ("k", {"k": 1001}),
        ("usefulness", {"usefulness": None}),
        ("usefulness[2]", {"usefulness": [0, 0, -1]}),
        ("usefulness[1]", {"usefulness": [0, float("nan"), 0]}),
        ("usefulness[0]", {"usefulness": [1001, 0, 0]}),
        ("rankings", {"rankings": None}),
        ("rankings", {"exposure": [1, 1, 0]}),
        ("rankings.depth", {"rankings": common_pb2.Rankings()}),
        ("rankings.indices[1]", {"rankings": common_pb2.Rankings(depth=2, indices=[0, 3])}),
        ("exposure", {"rankings": None, "exposure": [1, 1]}),
        ("exposure[0]", {"rankings": None, "exposure": [1.5, 0, 0]}),
        ("browsing.model", {"browsing": pb.BrowsingModel()}),
        ("browsing.top_k", {"browsing": pb.BrowsingModel(top_k=0)}),
        ("browsing.rbp_patience", {"browsing": pb.BrowsingModel(rbp_patience=1)}),
        ("browsing.rbp_patience", {"browsing": pb.BrowsingModel(rbp_patience=float("nan"))}),
        ("browsing.reciprocal_rank", {"browsing": pb.BrowsingModel(reciprocal_rank=False)}),
        (
            "browsing.position_weights.weights",
            {"browsing": pb.BrowsingModel(position_weights=pb.PositionWeights())},
        ),
        (
            "browsing.position_weights.weights[1]",
            {"browsing": pb.BrowsingModel(position_weights=pb.PositionWeights(weights=[1, 2]))},
        ),
    ],
)
def test_exposure_bounds(field: str, changes: dict[str, object]) -> None:
    with pytest.raises(InvalidField) as caught:
        measures.exposure(_exposure(**changes))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("answers", pb.EvaluateUtilityRequest(references=["x"])),
        ("references", pb.EvaluateUtilityRequest(answers=["x"])),
        ("metric", pb.EvaluateUtilityRequest.FromString(b"\x0a\x01x\x12\x01x\x18\x11")),
        ("weights", pb.EvaluateUtilityRequest(answers=["x"], references=["x"], weights=[0.5, 0.5])),
        ("weights[0]", pb.EvaluateUtilityRequest(answers=["x"], references=["x"], weights=[1.5])),
        ("weights", pb.EvaluateUtilityRequest(answers=["x"], references=["x"], weights=[0])),
        ("u_max", pb.EvaluateUtilityRequest(answers=["x"], references=["x"], u_max=0)),
        ("u_max", pb.EvaluateUtilityRequest(answers=["x"], references=["x"], u_max=float("nan"))),
    ],
)
def test_utility_bounds(field: str, request_: pb.EvaluateUtilityRequest) -> None:
    with pytest.raises(InvalidField) as caught:
        measures.utility(request_)
    assert caught.value.field == field
