"""Groups, probabilities and bounds of exposure questions."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh.common.v1 import common_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField
from evenmesh_core.exposure import exposure_metrics, group_exposure, rbp
from evenmesh_evaluator import measures


def _exposure(request: pb.EvaluateExposureRequest) -> pb.EvaluateExposureResponse:
    return measures.exposure(request)


def _request() -> pb.EvaluateExposureRequest:
    """Two rankings of three items, the first useful, shown one at a time."""
    return pb.EvaluateExposureRequest(
        rankings=common_pb2.Rankings(depth=2, indices=[0, 1, 2, 1]), usefulness=[1, 0, 0], k=1
    )


def test_groups_are_summed_and_compared() -> None:
    request = _request()
    request.groups.extend(["y", "x", "x"])
    response = _exposure(request)
    # ε = (1/2, 0, 1/2), ε* = (1, 0, 0). x: 1/2 against 0, y: 1/2 against 1.
    assert [(g.name, g.exposure, g.target, g.difference) for g in response.groups] == [
        ("x", 0.5, 0.0, 0.5),
        ("y", 0.5, 1.0, -0.5),
    ]
    assert not response.groups[0].HasField("ratio")
    assert response.groups[1].ratio == 1 / 2
    # The only ratio is its own best; differences from -1/2 to 1/2.
    assert (response.worst_group_ratio, response.worst_group_difference) == (1.0, 1.0)
    assert response.ee_d_bound == 1.0


def test_groups_without_exposure_have_no_worst_ratio() -> None:
    request = pb.EvaluateExposureRequest(exposure=[0.0, 0.0], usefulness=[1, 0], k=1, groups=["x", "y"])
    response = _exposure(request)
    assert not response.HasField("worst_group_ratio")
    assert response.HasField("worst_group_difference")


def test_without_groups_their_fields_stay_unset() -> None:
    response = _exposure(_request())
    assert not response.groups
    assert not response.HasField("worst_group_ratio")
    assert not response.HasField("worst_group_difference")


def test_rankings_that_are_all_there_are_weigh_their_probability() -> None:
    request = _request()
    request.probabilities.extend([0.75, 0.25])
    response = _exposure(request)
    # Item 0 comes first with probability 3/4, item 2 with 1/4: EE-D = 9/16 + 1/16, EE-R = 3/4.
    assert list(response.exposure) == [0.75, 0, 0.25]
    assert (response.ee_d, response.ee_r) == (10 / 16, 3 / 4)


def test_probabilities_under_another_browsing_model_end_at_k() -> None:
    request = _request()
    request.k = 2
    request.browsing.rbp_patience = 0.5
    request.probabilities.extend([1, 0])
    # The first ranking alone: attention 1 to item 0, 1/2 to item 1.
    assert list(_exposure(request).exposure) == [1, 0.5, 0]


@pytest.mark.parametrize(
    ("field", "broken"),
    [
        ("groups", lambda m: m.groups.extend(["x"])),
        ("groups[1]", lambda m: m.groups.extend(["x", "y" * 1025, "x"])),
        ("groups[2]", lambda m: m.groups.extend(["x", "x", "\0"])),
        ("probabilities", lambda m: m.probabilities.extend([1])),
        ("probabilities", lambda m: m.probabilities.extend([0.5, 0.4])),
        ("probabilities[1]", lambda m: m.probabilities.extend([1, -0.0001])),
        ("probabilities[0]", lambda m: m.probabilities.extend([math.nan, 1])),
        ("usefulness", lambda m: m.ClearField("usefulness")),
        ("usefulness[1]", lambda m: m.usefulness.__setitem__(1, 1000.5)),
        ("usefulness[2]", lambda m: m.usefulness.__setitem__(2, -1)),
        ("usefulness[0]", lambda m: m.usefulness.__setitem__(0, math.nan)),
        ("rankings", lambda m: m.ClearField("rankings")),
        ("rankings", lambda m: m.exposure.extend([1, 0, 0])),
        ("exposure", lambda m: (m.ClearField("rankings"), m.exposure.extend([1, 1]))),
        ("exposure[0]", lambda m: (m.ClearField("rankings"), m.exposure.extend([1.5, 0, 0]))),
        ("rankings.depth", lambda m: m.rankings.Clear()),
        ("rankings.indices", lambda m: m.rankings.indices.append(0)),
        ("rankings.indices[1]", lambda m: m.rankings.indices.__setitem__(1, 3)),
        ("k", lambda m: setattr(m, "k", 0)),
        ("k", lambda m: setattr(m, "k", 1001)),
        ("browsing.top_k", lambda m: setattr(m.browsing, "top_k", 0)),
        ("browsing.rbp_patience", lambda m: setattr(m.browsing, "rbp_patience", 1)),
        ("browsing.rbp_patience", lambda m: setattr(m.browsing, "rbp_patience", math.nan)),
        ("browsing.reciprocal_rank", lambda m: setattr(m.browsing, "reciprocal_rank", False)),
        (
            "browsing.position_weights.weights[1]",
            lambda m: m.browsing.position_weights.weights.extend([1, 1.5]),
        ),
        ("browsing.position_weights.weights", lambda m: m.browsing.position_weights.SetInParent()),
        ("browsing.model", lambda m: m.browsing.SetInParent()),
    ],
)
def test_bounds(field: str, broken: Callable[[pb.EvaluateExposureRequest], object]) -> None:
    request = _request()
    broken(request)
    with pytest.raises(InvalidField) as caught:
        measures.exposure(request)
    assert caught.value.field == field


def test_probabilities_need_rankings() -> None:
    request = pb.EvaluateExposureRequest(exposure=[1], usefulness=[1], k=1, probabilities=[1])
    with pytest.raises(InvalidField) as caught:
        measures.exposure(request)
    assert caught.value.field == "probabilities"


@given(data=st.data())
def test_the_wire_changes_no_bit(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 5), "items")
    depth = data.draw(st.integers(1, n), "depth")
    rankings = data.draw(st.lists(st.permutations(range(n)), min_size=1, max_size=4), "rankings")
    rankings = [list(one)[:depth] for one in rankings]
    grades = data.draw(st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=n, max_size=n), "grades")
    groups = data.draw(st.lists(st.sampled_from("xyz"), min_size=n, max_size=n), "groups")
    k = data.draw(st.integers(1, 6), "k")
    request = pb.EvaluateExposureRequest(
        rankings=common_pb2.Rankings(depth=depth, indices=[i for one in rankings for i in one]),
        usefulness=grades,
        k=k,
        browsing=pb.BrowsingModel(rbp_patience=0.7),
        groups=groups,
    )
    response = pb.EvaluateExposureResponse.FromString(_exposure(request).SerializeToString())
    metrics = exposure_metrics(rankings, grades, k=k, browsing=rbp(0.7))
    assert list(response.exposure) == metrics.exposure.tolist()
    assert list(response.target) == metrics.target.tolist()
    for name in ("ee_d", "ee_d_norm", "ee_d_bound"):
        assert getattr(response, name) == getattr(metrics, name)
    for name in ("ee_r", "ee_l", "ee_r_norm"):
        undefined = math.isnan(metrics.ee_r) or math.isnan(getattr(metrics, name))
        assert response.HasField(name) is not undefined
        assert undefined or getattr(response, name) == getattr(metrics, name)
    summed = group_exposure(metrics.exposure, metrics.target, groups)
    assert [g.name for g in response.groups] == list(summed.labels)
    assert [g.exposure for g in response.groups] == summed.exposure.tolist()
    assert response.worst_group_difference == summed.worst_difference
